//! Pictures that are odd, damaged, or made to break a decoder.

use super::*;
use crate::{MediaError, MediaLimits};
use image::codecs::gif::GifEncoder;
use image::{Delay, DynamicImage, Frame, ImageFormat, RgbaImage};
use proptest::prelude::*;
use std::io::Cursor;
use std::path::Path;

fn file(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_omni/frontend/media");
    std::fs::read(folder.join(name)).unwrap()
}

fn decoded(bytes: &[u8]) -> Result<Picture, MediaError> {
    decode_picture(bytes, &MediaLimits::default(), Grey16::HighByte)
}

fn encoded(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Vec::new();
    picture.write_to(&mut Cursor::new(&mut bytes), format).unwrap();
    bytes
}

/// A picture of two colours, the left half transparent where the format can be.
fn halves(width: u32, height: u32) -> DynamicImage {
    let colour = |x: u32| if x < width / 2 { [0, 0, 0, 0] } else { [255, 0, 0, 255] };
    DynamicImage::ImageRgba8(RgbaImage::from_fn(width, height, |x, _| image::Rgba(colour(x))))
}

#[test]
fn every_format_is_read_and_what_is_transparent_is_white() {
    for format in [ImageFormat::Png, ImageFormat::WebP, ImageFormat::Gif] {
        let picture = decoded(&encoded(&halves(8, 2), format)).unwrap();
        assert_eq!((picture.size().width, picture.size().height), (8, 2), "{format:?}");
        assert_eq!(picture.rgb()[..3], [255, 255, 255], "{format:?}");
        assert_eq!(picture.rgb()[21..24], [255, 0, 0], "{format:?}");
    }
    let opaque = DynamicImage::ImageRgb8(halves(8, 2).to_rgb8());
    assert_eq!(decoded(&encoded(&opaque, ImageFormat::Bmp)).unwrap().rgb(), opaque.as_bytes());
}

#[test]
fn jpegs_of_print_and_of_grey_are_read() {
    let fixture = |name: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/pictures");
        decoded(&std::fs::read(folder.join(name)).unwrap()).unwrap()
    };
    // What Pillow 13 gives.
    let (print, near) = (fixture("cmyk.jpg"), |a: &[u8], b: [u8; 3]| a.iter().zip(b).all(|(a, b)| a.abs_diff(b) <= 3));
    assert!(near(&print.rgb()[6..9], [46, 199, 164]), "{:?}", &print.rgb()[6..9]);
    assert!(near(&print.rgb()[39..42], [255, 0, 0]), "{:?}", &print.rgb()[39..42]);
    assert!(fixture("grey_progressive.jpg").rgb().iter().all(|value| value.abs_diff(77) <= 1));
}

#[test]
fn grey_of_sixteen_bits_keeps_its_high_byte() {
    let mut picture = image::ImageBuffer::<image::Luma<u16>, _>::new(2, 1);
    (picture[(0, 0)], picture[(1, 0)]) = (image::Luma([0x1234]), image::Luma([0x00ff]));
    let bytes = encoded(&DynamicImage::ImageLuma16(picture), ImageFormat::Png);
    assert_eq!(decoded(&bytes).unwrap().rgb(), [0x12, 0x12, 0x12, 0, 0, 0]);
    let clipped = decode_picture(&bytes, &MediaLimits::default(), Grey16::Clip).unwrap();
    assert_eq!(clipped.rgb(), [255; 6]);
}

#[test]
fn a_picture_beyond_the_limits_is_refused_by_its_header() {
    let limits = MediaLimits { max_pixels: 9_999, ..MediaLimits::default() };
    let wide = encoded(&halves(100, 100), ImageFormat::Png);
    let refused = decode_picture(&wide, &limits, Grey16::HighByte).unwrap_err().to_string();
    assert_eq!(refused, "the image has 10000 pixels, at most 9999 are taken (max_pixels)");
    // A header that promises 2^60 pixels, and nothing behind it.
    let mut bomb = wide[..33].to_vec();
    bomb[16..24].copy_from_slice(&[0x3f, 0xff, 0xff, 0xff, 0x3f, 0xff, 0xff, 0xff]);
    let refused = decoded(&bomb).unwrap_err().to_string();
    assert!(refused.contains("max_pixels") || refused.starts_with("the png cannot be decoded"), "{refused}");
    let limits = MediaLimits { max_bytes: 10, ..MediaLimits::default() };
    let refused = decode_picture(&wide, &limits, Grey16::HighByte).unwrap_err();
    assert!(matches!(refused, MediaError::TooMuch { name: "max_bytes", limit: 10, .. }), "{refused}");
}

#[test]
fn a_picture_that_is_cut_short_is_refused() {
    for name in ["i_w112_h80.png", "i_w120_h80.jpg", "i_exif6_w120_h80.jpg"] {
        let whole = file(name);
        assert!(decoded(&whole).is_ok(), "{name}");
        for part in [1, 4, 10, 50, 90, 98] {
            let cut = &whole[..whole.len() * part / 100];
            let error = decoded(cut).expect_err(&format!("{part} % of {name}")).to_string();
            assert!(!error.contains('\n') && error.len() < 200, "{error}");
        }
    }
    // Bytes behind a jpeg are none of it.
    let mut film = file("i_w120_h80.jpg");
    film.extend(b"\0\0\0\x18ftypmp42\xff\xda");
    assert!(decoded(&film).is_ok());
}

#[test]
fn what_is_no_picture_is_refused_with_what_to_send() {
    for bytes in [&b"RIFF\0\0\0\0WAVEfmt "[..], b"<svg>", b"hello", b"\x89PN", b"II*\0\x08\0\0\0"] {
        let error = decoded(bytes).unwrap_err().to_string();
        assert_eq!(error, "this is not an image file: expected png, jpeg, gif, webp or bmp");
    }
    assert_eq!(decoded(b"").unwrap_err().to_string(), "the image has 0 bytes, at least 1 are needed");
}

/// A GIF whose frame `i` is all of the grey `10 i` and is shown for `delays[i]` ms.
fn gif(delays: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = GifEncoder::new(&mut bytes);
    encoder.set_repeat(image::codecs::gif::Repeat::Infinite).unwrap();
    for (i, delay) in delays.iter().enumerate() {
        let grey = 10 * i as u8;
        let picture = RgbaImage::from_pixel(4, 4, image::Rgba([grey, grey, grey, 255]));
        let delay = Delay::from_numer_denom_ms(*delay, 1);
        encoder.encode_frame(Frame::from_parts(picture, 0, 0, delay)).unwrap();
    }
    drop(encoder);
    bytes
}

#[test]
fn an_animation_becomes_the_frames_that_are_shown() {
    let bytes = gif(&[1_500, 500, 10, 1_900]);
    assert!(is_animated(&bytes) && !is_animated(&file("i_28x28.png")));
    let animation = decode_animation(&bytes, 2.0, &MediaLimits::default(), Ok).unwrap();
    // Four seconds (the frame of 10 ms counts 100): eight frames.
    assert_eq!(animation.frames_per_second, 2.0);
    let greys: Vec<u8> = animation.frames.iter().map(|frame| frame.rgb()[0]).collect();
    assert_eq!(greys, [0, 0, 0, 10, 30, 30, 30, 30]);
    // No more than one frame is there as large as it comes, however many are picked.
    let sizes = std::cell::RefCell::new(0);
    let halved = |frame: Picture| {
        *sizes.borrow_mut() += 1;
        Ok(Picture::new(Size { height: 1, width: 1 }, frame.rgb()[..3].to_vec()))
    };
    let small = decode_animation(&bytes, 2.0, &MediaLimits::default(), halved).unwrap();
    assert_eq!((small.frames.len(), *sizes.borrow()), (8, 3), "of three frames that are shown");
    assert!(small.frames.iter().all(|frame| frame.rgb().len() == 3));
    let few = decode_animation(&bytes, 2.0, &MediaLimits { max_frames: 2, ..MediaLimits::default() }, Ok).unwrap();
    assert_eq!((few.frames.len(), few.frames_per_second), (2, 0.5));
}

#[test]
fn animations_beyond_the_limits_and_still_pictures_are_refused() {
    let bytes = gif(&[900; 20]);
    let refused = |limits: MediaLimits| decode_animation(&bytes, 2.0, &limits, Ok).unwrap_err().to_string();
    let limits = MediaLimits { max_seconds: 10.0, ..MediaLimits::default() };
    assert_eq!(refused(limits), "the video has 11 seconds, at most 10 are taken (max_seconds)");
    let limits = MediaLimits { max_pixels: 15, ..MediaLimits::default() };
    assert_eq!(refused(limits), "the video has 16 pixels, at most 15 are taken (max_pixels)");
    let still = decode_animation(&file("i_28x28.png"), 2.0, &MediaLimits::default(), Ok).unwrap_err().to_string();
    assert!(still.contains("it is one picture"), "{still}");
    assert!(decode_animation(&bytes, f64::NAN, &MediaLimits::default(), Ok).is_err());
}

const SEEDS: [&str; 5] =
    ["i_palette_trns_w96_h64.png", "i_gray16_w64_h64.png", "i_exif6_w120_h80.jpg", "i_28x28.png", "gif"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_damage_makes_a_decoder_panic_or_exceed_its_limits(
        seed in 0..SEEDS.len(),
        flips in proptest::collection::vec((0usize..8_000, any::<u8>()), 1..8),
        cut in proptest::option::of(0usize..8_000),
    ) {
        let mut bytes = if SEEDS[seed] == "gif" { gif(&[100; 6]) } else { file(SEEDS[seed]) };
        let len = bytes.len();
        flips.iter().for_each(|(at, bits)| bytes[at % len] ^= bits);
        if let Some(cut) = cut {
            bytes.truncate(cut % len);
        }
        let limits = MediaLimits { max_pixels: 100_000, max_seconds: 5.0, max_frames: 8, ..MediaLimits::default() };
        if let Ok(picture) = decode_picture(&bytes, &limits, Grey16::HighByte) {
            prop_assert!(picture.size().height * picture.size().width <= 100_000);
        }
        if let Ok(animation) = decode_animation(&bytes, 2.0, &limits, Ok) {
            prop_assert!(animation.frames.len() <= 8);
        }
    }
}
