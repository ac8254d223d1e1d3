//! Files of pictures and animations, written by hand: good ones, and ones that claim what they are not.
#![allow(dead_code, reason = "each test binary uses its own part")]

/// A picture of these sides, its colours running across it, as a bmp.
pub fn bmp(width: u32, height: u32) -> Vec<u8> {
    let line = (width * 3).next_multiple_of(4);
    let size = line * height;
    let mut file = b"BM".to_vec();
    file.extend((54 + size).to_le_bytes());
    file.extend([0; 4]);
    file.extend(54u32.to_le_bytes());
    file.extend(40u32.to_le_bytes());
    file.extend(width.to_le_bytes());
    file.extend(height.to_le_bytes());
    file.extend(1u16.to_le_bytes());
    file.extend(24u16.to_le_bytes());
    file.extend([0; 24]);
    for y in 0..height {
        for x in 0..line {
            file.push((x * 7 + y * 3) as u8);
        }
    }
    file
}

/// A picture of two colours, of an eighth of a byte a pixel, as a bmp. The width is a multiple of 32.
pub fn two_colours(width: u32, height: u32) -> Vec<u8> {
    let size = width / 8 * height;
    let mut file = b"BM".to_vec();
    for field in [62 + size, 0, 62, 40, width, height, 1 | 1 << 16, 0, size, 0, 0, 2, 2, 0x0010_80f0, 0x00ff_4020] {
        file.extend(field.to_le_bytes());
    }
    file.extend((0..size).map(|i| (i * 11) as u8));
    file
}

/// A gif of so many frames of one pixel, each shown for so many hundredths of a second.
pub fn gif(frames: usize, hundredths: u16) -> Vec<u8> {
    // One pixel, a palette of two colours, repeated for ever.
    let mut file = b"GIF89a\x01\0\x01\0\x80\0\0\x10\x80\xf0\xff\x40\x20".to_vec();
    file.extend(b"\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0");
    for number in 0..frames {
        file.extend(b"\x21\xf9\x04\0");
        file.extend(hundredths.to_le_bytes());
        file.extend(b"\0\0\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02");
        // The codes: clear, colour 0 or 1, end.
        file.extend(if number % 2 == 0 { b"\x44\x01\0" } else { b"\x4c\x01\0" });
    }
    file.push(b';');
    file
}

/// The head of a png of these sides, and an empty stream of pixels.
pub fn png_head(width: u32, height: u32) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |name: &[u8; 4], data: &[u8]| {
        file.extend((data.len() as u32).to_be_bytes());
        let named = [name.as_slice(), data].concat();
        file.extend(&named);
        file.extend(crc32fast::hash(&named).to_be_bytes());
    };
    let sides = [width.to_be_bytes(), height.to_be_bytes()].concat();
    chunk(b"IHDR", &[sides.as_slice(), &[8, 2, 0, 0, 0]].concat());
    chunk(b"IDAT", b"\x78\x9c\x03\0\0\0\0\x01");
    chunk(b"IEND", b"");
    file
}
