//! Recognizes a file by its first bytes. File names and declared types are ignored: a client can write anything there.

use super::AudioError;

/// A container with a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Container {
    Wav,
    Aiff,
    Flac,
    Mp3,
    Adts,
    Ogg,
    Mp4,
}

impl Container {
    /// For messages: "the wav is damaged".
    pub fn name(self) -> &'static str {
        match self {
            Container::Wav => "wav",
            Container::Aiff => "aiff",
            Container::Flac => "flac",
            Container::Mp3 => "mp3",
            Container::Adts => "aac",
            Container::Ogg => "ogg",
            Container::Mp4 => "m4a",
        }
    }
}

/// A container and where it starts: tags in front of it are skipped.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    pub container: Container,
    pub start: usize,
}

/// First bytes of files that clients send by mistake.
const NOT_AUDIO: &[(&[u8], &str)] = &[
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!", "a rar archive"),
    (b"%PDF", "a pdf"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"MThd", "a midi file, which holds notes"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"<", "a web page or xml"),
    (b"{", "json"),
    (b"data:", "a data URL inside the data"),
    (b"http", "an address"),
];

/// Audio and video formats that this program does not read.
const NOT_READ: &[(&[u8], &str)] = &[
    (b"RF64", "RF64 (a wav for more than 4 GB)"),
    (b"BW64", "BW64 (a wav for more than 4 GB)"),
    (b"RIFX", "RIFX (a big-endian wav)"),
    (b"caff", "CAF"),
    (b"#!AMR", "AMR"),
    (b"\x1a\x45\xdf\xa3", "WebM or Matroska"),
    (b"\x30\x26\xb2\x75", "WMA"),
    (b"wvpk", "WavPack"),
    (b"MAC ", "Monkey's Audio"),
    (b".snd", "AU"),
];

/// First bytes of the first packet of Ogg streams that this program does not read.
const OGG_NOT_READ: &[(&[u8], &str)] = &[(b"OpusHead", "Opus"), (b"Speex   ", "Speex")];
const OGG_VIDEO: &[&[u8]] = &[b"\x80theora", b"BBCD", b"OVP80", b"fishead"];

/// Tags that a file may begin with: more of them is an attack.
const MAX_TAGS: usize = 4;

/// The container of a file.
pub(super) fn recognise(bytes: &[u8]) -> Result<Found, AudioError> {
    let mut start = 0;
    for _ in 0..MAX_TAGS {
        let Some(length) = id3v2(&bytes[start..]) else { break };
        start += length.min(bytes.len() - start);
        // Some writers pad behind the tag.
        start += bytes[start..].iter().take_while(|b| **b == 0).count();
    }
    let head = &bytes[start..];
    if head.is_empty() {
        return Err(AudioError::NoAudio);
    }
    let container = match head {
        [b'R', b'I', b'F', b'F', _, _, _, _, form @ ..] => match form {
            [b'W', b'A', b'V', b'E', ..] => Container::Wav,
            [b'A', b'V', b'I', b' ', ..] => return Err(AudioError::Video),
            _ => return Err(AudioError::Unknown),
        },
        [b'F', b'O', b'R', b'M', _, _, _, _, b'A', b'I', b'F', b'F' | b'C', ..] => Container::Aiff,
        [b'f', b'L', b'a', b'C', ..] => Container::Flac,
        [b'O', b'g', b'g', b'S', ..] => ogg(head)?,
        [_, _, _, _, b'f', b't', b'y', b'p', ..] | [_, _, _, _, b'm', b'o', b'o', b'v', ..] => Container::Mp4,
        [0, 0, 1, 0xba | 0xb3, ..] | [b'F', b'L', b'V', 1, ..] => return Err(AudioError::Video),
        // The sync word of MPEG audio, then version and layer; ADTS has the layer that MPEG audio leaves out.
        [0xff, b, ..] if b & 0xf6 == 0xf0 => Container::Adts,
        [0xff, b, ..] if b & 0xe6 == 0xe2 && b & 0x18 != 0x08 => Container::Mp3,
        [0xff, b, ..] if matches!(b & 0xe6, 0xe4 | 0xe6) && b & 0x18 != 0x08 && !head.starts_with(b"\xff\xfe") => {
            return Err(AudioError::Unsupported("MPEG audio of layer 1 or 2".into()));
        }
        _ => return Err(other(head)),
    };
    Ok(Found { container, start })
}

fn other(head: &[u8]) -> AudioError {
    if let Some((_, name)) = NOT_READ.iter().find(|(magic, _)| head.starts_with(magic)) {
        return AudioError::Unsupported((*name).into());
    }
    match NOT_AUDIO.iter().find(|(magic, _)| head.starts_with(magic)) {
        Some((_, name)) => AudioError::NotAudio(name),
        None => AudioError::Unknown,
    }
}

/// Length of the ID3v2 tag that a file begins with.
fn id3v2(bytes: &[u8]) -> Option<usize> {
    let [b'I', b'D', b'3', _, _, flags, size @ ..] = bytes else { return None };
    let size = size.get(..4)?.iter().fold(0, |n, b| n << 7 | usize::from(b & 0x7f));
    let footer = if flags & 0x10 != 0 { 10 } else { 0 };
    Some(10 + size + footer)
}

/// The stream of an Ogg file, from the first packet of its first page.
fn ogg(head: &[u8]) -> Result<Container, AudioError> {
    let segments = usize::from(head.get(26).copied().unwrap_or(0));
    let packet = head.get(27 + segments..).unwrap_or_default();
    if OGG_VIDEO.iter().any(|magic| packet.starts_with(magic)) {
        return Err(AudioError::Video);
    }
    match OGG_NOT_READ.iter().find(|(magic, _)| packet.starts_with(magic)) {
        Some((_, name)) => Err(AudioError::Unsupported(format!("{name} in ogg"))),
        None => Ok(Container::Ogg),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Result<Container, AudioError> {
        recognise(bytes).map(|found| found.container)
    }

    #[test]
    fn tags_in_front_are_skipped() {
        let mut file = b"ID3\x04\0\0\0\0\x01\x02".to_vec(); // 130 bytes of tag
        file.extend([7; 130]);
        file.extend([0; 20]);
        file.extend([0xff, 0xfb, 0x90, 0x00]);
        assert_eq!(recognise(&file).unwrap(), Found { container: Container::Mp3, start: 160 });
        assert_eq!(of(b"ID3\x04\0\0\x7f\x7f\x7f\x7f"), Err(AudioError::NoAudio));
        assert_eq!(of(b"ID3"), Err(AudioError::Unknown));
    }

    #[test]
    fn mpeg_audio_and_adts_are_told_apart() {
        assert_eq!(of(&[0xff, 0xfb, 0x90]), Ok(Container::Mp3));
        assert_eq!(of(&[0xff, 0xf3, 0x90]), Ok(Container::Mp3)); // MPEG 2
        assert_eq!(of(&[0xff, 0xe3, 0x90]), Ok(Container::Mp3)); // MPEG 2.5
        assert_eq!(of(&[0xff, 0xf1, 0x50]), Ok(Container::Adts));
        assert_eq!(of(&[0xff, 0xf9, 0x50]), Ok(Container::Adts));
        assert!(matches!(of(&[0xff, 0xfd, 0x90]), Err(AudioError::Unsupported(_)))); // layer 2
        assert_eq!(of(&[0xff, 0xeb, 0x90]), Err(AudioError::Unknown)); // no such version
        assert_eq!(of(b"\xff\xfet\0e\0x\0t\0"), Err(AudioError::Unknown)); // text in UTF-16
        assert_eq!(of(b"\xff\xd8\xff\xe0"), Err(AudioError::NotAudio("a picture")));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (bytes, text) in [
            (&b"PK\x03\x04\x14\0"[..], "this is a zip archive, not an audio file"),
            (b"\x1a\x45\xdf\xa3\x01", "WebM or Matroska is not read here: convert it to wav"),
            (b"RIFF\0\0\0\0AVI LIST", "this is a video"),
            (b"{\"a\": 1}", "this is json"),
            (b"hello", "this is not an audio file"),
            (b"OggS\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x13OpusHead", "Opus in ogg is not read here"),
            (b"OggS\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x13\x80theora", "this is a video"),
        ] {
            let error = of(bytes).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }
}
