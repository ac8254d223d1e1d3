//! Files of pictures: png, jpeg, gif, webp and bmp become upright 8-bit RGB; animations become frames.
//!
//! | file | what |
//! | --- | --- |
//! | `decode` | one picture of a file |
//! | `animation` | the frames of a GIF or WebP, and when each is shown |
//! | `jpeg` | files of jpeg, which have a decoder of their own |

mod animation;
mod decode;
mod jpeg;
#[cfg(test)]
mod tests;

pub use animation::{Animation, decode_animation, is_animated};
pub use decode::{Grey16, decode_picture};

use crate::size::Size;
use sha2::{Digest, Sha256};
use std::sync::OnceLock;

/// A picture of 8-bit RGB.
#[derive(Clone, Debug)]
pub struct Picture {
    size: Size,
    rgb: Vec<u8>,
    hash: OnceLock<[u8; 32]>,
}

impl PartialEq for Picture {
    fn eq(&self, other: &Picture) -> bool {
        (self.size, &self.rgb) == (other.size, &other.rgb)
    }
}

impl Eq for Picture {}

impl Picture {
    /// A picture of these values, `[height, width, 3]`.
    ///
    /// # Panics
    /// When there are more or fewer.
    pub fn new(size: Size, rgb: Vec<u8>) -> Picture {
        assert_eq!(rgb.len(), size.height * size.width * 3, "{size:?}");
        Picture { size, rgb, hash: OnceLock::new() }
    }

    /// Its sides.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Its values, `[height, width, 3]`.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// The SHA-256 of its values, computed when it is first asked for: by the thread that has decoded the picture, beside
    /// those of its neighbours.
    pub fn hash(&self) -> &[u8; 32] {
        self.hash.get_or_init(|| Sha256::digest(&self.rgb).into())
    }
}
