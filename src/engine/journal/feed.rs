//! The media of a request, from which the encoder's input is made piece by piece: as handles, so that nothing is
//! computed here, and never further ahead than the encoder has come, so that little is on its way.

use omni_media::Medium;
use omni_model::encoder::{Features, Piece, Schedule};
use omni_transfer::payload::Part;
use std::sync::Arc;

/// Units of input that may wait for the encoder, or be on their way to it: a few MiB where it is another process.
const AHEAD: u32 = 8;

/// What is encoded for a span of the prompt.
#[derive(Clone, Debug)]
pub(crate) struct Encoding {
    /// Where it comes from.
    pub medium: Arc<Medium>,
    /// Whether its sound is meant, and not its pictures.
    pub sound: bool,
}

/// See the module.
pub(crate) struct Feed {
    pub schedule: Schedule,
    media: Vec<Encoding>,
    bytes: usize,
    /// The unit of the next piece to send.
    next: u32,
}

impl Feed {
    /// For the media of a schedule.
    pub fn new(schedule: Schedule, media: Vec<Encoding>) -> Feed {
        // A video that is heard comes twice.
        let bytes = media.iter().filter(|of| !of.sound || of.medium.pictures().is_none()).map(|of| of.medium.bytes());
        Feed { schedule, bytes: bytes.sum(), media, next: 0 }
    }

    /// Memory of the media.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A new sequence begins with this unit.
    pub fn rewind(&mut self, unit: u32) {
        self.next = unit;
    }

    /// The pieces that may be sent when the encoder has used all units before `used`, and whether each is the last.
    pub fn take(&mut self, used: u32) -> Vec<(Piece, Part, bool)> {
        let most = used.saturating_add(AHEAD);
        let pieces = self.schedule.pieces_from(self.next).take_while(|piece| piece.unit < most);
        let all = self.schedule.units();
        let sent: Vec<_> = pieces
            .filter_map(|piece| {
                let Encoding { medium, sound } = self.media.get(piece.medium)?;
                let (medium, sound, range) = (Arc::clone(medium), *sound, piece.range.clone());
                let last = piece.unit + piece.units == all;
                Some((piece, Part::Features(Features::Of { medium, sound, range }), last))
            })
            .collect();
        if let Some((piece, ..)) = sent.last() {
            self.next = piece.unit + piece.units;
        }
        sent
    }
}
