//! Durations and sizes as the user writes them: `250ms`, `2s`, `5m`, `1h`; `512MiB`, `8GB`.

use std::time::Duration;

const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Reads a number followed by a unit.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(unit_at);
    let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit.trim())?;
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}

const SIZES: [(&str, u64); 7] = [
    ("B", 1),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// Reads a number of bytes with its unit.
pub(super) fn parse_bytes(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(unit_at);
    let (_, size) = SIZES.iter().find(|(name, _)| *name == unit.trim())?;
    let bytes = number.parse::<f64>().ok()? * *size as f64;
    // Beyond 2^53 a float no longer counts bytes, and no device has as many.
    (bytes.is_finite() && bytes < (1u64 << 53) as f64).then_some(bytes as u64)
}

/// Writes a number of bytes in the binary unit that suits it.
pub fn format_bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1u32 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1u32 << 30)),
    }
}

/// Writes a duration in the largest unit that keeps it whole.
pub fn format_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let whole = [(3_600_000, "h"), (60_000, "m"), (1000, "s")].into_iter().find(|(unit, _)| ms.is_multiple_of(*unit));
    match whole {
        _ if ms == 0 => "0s".to_owned(),
        Some((unit, name)) => format!("{}{name}", ms / unit),
        None => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_and_written() {
        for text in ["250ms", "2s", "5m", "1h", "90s", "0s"] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(parse_duration(&format_duration(duration)).unwrap(), duration, "{text}");
        }
        assert_eq!(parse_duration("1.5 s"), Some(Duration::from_millis(1500)));
        assert_eq!(format_duration(Duration::from_secs(90)), "90s");
    }

    #[test]
    fn sizes_are_read_and_written() {
        assert_eq!(parse_bytes("512MiB"), Some(512 << 20));
        assert_eq!(parse_bytes("1.5 GiB"), Some(3 << 29));
        assert_eq!(parse_bytes("8GB"), Some(8_000_000_000));
        assert_eq!(format_bytes(3 << 29), "1.5 GiB");
        assert_eq!(format_bytes(100), "100 B");
        for text in ["", "8", "GB", "-1GB", "8G", "1e300GB", "99999999999999GB"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn other_things_are_not_durations() {
        for text in ["", "5", "s", "-1s", "1 day", "1.2.3s", "ms5"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
