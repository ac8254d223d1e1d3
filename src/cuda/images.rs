//! The kernels of `kernels/*.cu`, compiled by `build.rs`: one fat binary for each file, with machine code for several
//! GPUs and PTX for later ones.

/// Bytes at an address that the driver can read a fat binary from.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Aligned<T: ?Sized>(pub T);

/// One fat binary.
pub type Image = Aligned<[u8]>;

mod table {
    use super::{Aligned, Image};

    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// Whether the files whose names end with `_90a` have code for Hopper: `OMNI_CUDA_ARCHS` had 90.
pub const HOPPER: bool = table::HOPPER;

/// File name without ending, and image, of every kernel file; sorted by name.
pub fn all() -> &'static [(&'static str, &'static Image)] {
    table::IMAGES
}

/// The image of `kernels/NAME.cu`, if there is such a file.
pub fn image(name: &str) -> Option<&'static [u8]> {
    table::IMAGES.iter().find(|(file, _)| *file == name).map(|(_, image)| &image.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_file_is_in_the_binary() {
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels")).unwrap();
        let sources: Vec<_> =
            files.map(|file| file.unwrap().path()).filter(|f| f.extension().is_some_and(|e| e == "cu")).collect();
        assert_eq!(all().len(), sources.len());
        for source in sources {
            let image = image(source.file_stem().unwrap().to_str().unwrap()).unwrap();
            // The magic number of a fat binary.
            assert_eq!(image[..4], 0xBA55_ED50u32.to_le_bytes());
            assert_eq!(image.as_ptr() as usize % 64, 0);
        }
    }
}
