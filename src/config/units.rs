//! Durations as people write them: `250ms`, `2s`, `5m`, `1h`.

use std::time::Duration;

const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Reads a number followed by a unit.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(unit_at);
    let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit.trim())?;
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
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
    fn other_things_are_not_durations() {
        for text in ["", "5", "s", "-1s", "1 day", "1.2.3s", "ms5"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
