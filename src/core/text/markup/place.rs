//! Where in a text something is, as an editor counts.

/// A line and a column of it in characters, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// From 1.
    pub line: usize,
    /// From 1.
    pub column: usize,
}

impl Default for Place {
    fn default() -> Place {
        Place { line: 1, column: 1 }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

impl Place {
    /// The place behind a character at this one.
    pub(super) fn behind(self, c: char) -> Place {
        if c == '\n' { Place { line: self.line + 1, column: 1 } } else { Place { column: self.column + 1, ..self } }
    }
}

/// The places of rising offsets in a text.
#[derive(Debug)]
pub(super) struct Places<'t> {
    text: &'t str,
    offset: usize,
    place: Place,
}

impl<'t> Places<'t> {
    pub fn of(text: &'t str) -> Places<'t> {
        Places { text, offset: 0, place: Place::default() }
    }

    /// The place of a byte, not before that of an earlier call; the end for one beyond it.
    pub fn at(&mut self, offset: u64) -> Place {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = self.text.get(self.offset..).unwrap_or_default();
        for c in rest.chars() {
            if self.offset >= offset {
                break;
            }
            self.offset += c.len_utf8();
            self.place = self.place.behind(c);
        }
        self.place
    }
}
