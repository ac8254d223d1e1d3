//! Small files that would decode to endless sound.

/// Silence as FLAC: every frame of 65535 samples takes 14 to 17 bytes. A minute more costs a hundred bytes.
pub fn flac_of_silence(hours: u64, declared: bool) -> Vec<u8> {
    const RATE: u64 = 8_000;
    const BLOCK: u64 = 65_535;
    let samples = hours * 3600 * RATE;
    let mut file = b"fLaC\x80\0\0\x22".to_vec();
    file.extend_from_slice(&(BLOCK as u16).to_be_bytes());
    file.extend_from_slice(&(BLOCK as u16).to_be_bytes());
    file.extend_from_slice(&[0; 6]); // sizes of frames: unknown
    // Rate (20 bits), channels - 1 (3), bits - 1 (5), samples (36).
    let packed = (RATE << 44) | (15 << 36) | if declared { samples } else { 0 };
    file.extend_from_slice(&packed.to_be_bytes());
    file.extend_from_slice(&[0; 16]); // checksum of the samples: unknown
    for number in 0..samples / BLOCK {
        let mut frame = vec![0xff, 0xf8, 0b0111_0000, 0b0000_1000];
        frame.extend_from_slice(char::from_u32(number as u32).unwrap().to_string().as_bytes()); // numbered like UTF-8
        frame.extend_from_slice(&(BLOCK as u16 - 1).to_be_bytes());
        frame.push(crc(&frame, 8, 0x07) as u8);
        frame.extend_from_slice(&[0, 0, 0]); // one constant subframe of value 0
        let sum = crc(&frame, 16, 0x8005);
        frame.extend_from_slice(&(sum as u16).to_be_bytes());
        file.extend_from_slice(&frame);
    }
    file
}

fn crc(bytes: &[u8], width: u32, polynomial: u32) -> u32 {
    let mask = u32::MAX >> (32 - width);
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ (u32::from(*byte) << (width - 8)), |sum, _| {
            let carry = sum >> (width - 1) & 1;
            ((sum << 1) ^ (carry * polynomial)) & mask
        })
    })
}

/// Silence as MP3: 8 kbit/s, frames of 24 ms.
pub fn mp3_of_silence(hours: usize) -> Vec<u8> {
    // MPEG-2 layer III without checksum, 8 kbit/s, 24 kHz, mono; then no bits of any band.
    let mut frame = vec![0xff, 0xf3, 0x14, 0xc0];
    frame.resize(24, 0);
    frame.repeat(hours * 3600 * 1000 / 24)
}

/// Ogg with Opus in it: the first page.
pub fn ogg_opus() -> Vec<u8> {
    let mut page = b"OggS\0\x02".to_vec();
    page.extend_from_slice(&[0; 8]); // position
    page.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]); // stream, number
    let at = page.len();
    page.extend_from_slice(&[0; 4]); // checksum, below
    page.extend_from_slice(b"\x01\x13OpusHead\x01\x01\0\0\x80\xbb\0\0\0\0\0");
    let sum = crc(&page, 32, 0x04c1_1db7);
    page[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    page
}
