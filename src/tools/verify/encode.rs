//! Encodes the media of cases: by the towers on the CPU, or by the encoder stage of a device.

use super::device::step;
use candle_core::Tensor;
use omni_core::ids::Slot;
use omni_model::ModelError;
use omni_model::encoder::{Encodable, EncoderSpec, Features, Grain, Schedule};
use omni_model::hf::ThinkerConfig;
use omni_model::media::MediaRows;
use omni_model::stage::{SequenceSpec, SequenceWork, StageData, StageModel};
use omni_model::towers::Towers;

const SLOT: Slot = Slot(0);

/// What encodes.
pub(super) trait Encode {
    /// The clips `[bins, frames]` of one request.
    fn hear(&mut self, clips: &[Tensor]) -> Result<Vec<MediaRows>, String>;

    /// The patches `[n, patch_width]` of a picture or video with the grid `[slices, rows, columns]`.
    fn see(&mut self, patches: &Tensor, grid: [usize; 3]) -> Result<MediaRows, String>;
}

impl Encode for Towers {
    fn hear(&mut self, clips: &[Tensor]) -> Result<Vec<MediaRows>, String> {
        let tower = self.audio().map_err(|e| e.to_string())?;
        let longest = clips.iter().map(|clip| clip.dims()[1]).max().unwrap_or(0);
        clips.iter().map(|clip| tower.encode_beside(clip, longest).map_err(|e| e.to_string())).collect()
    }

    fn see(&mut self, patches: &Tensor, grid: [usize; 3]) -> Result<MediaRows, String> {
        self.vision().and_then(|tower| tower.encode(patches, grid)).map_err(|e| e.to_string())
    }
}

/// The encoder stage of a device.
pub(super) struct EncoderStage<'a> {
    /// The stage, without sequences.
    pub stage: &'a mut dyn StageModel,
    /// Its sizes.
    pub config: &'a ThinkerConfig,
}

impl Encode for EncoderStage<'_> {
    fn hear(&mut self, clips: &[Tensor]) -> Result<Vec<MediaRows>, String> {
        let sound = |clip: &Tensor| (Encodable::Sound { frames: clip.dims()[1] as u32 }, clip.clone());
        let clips: Vec<_> = clips.iter().map(sound).collect();
        self.encode(&clips).map_err(|e| e.to_string())
    }

    fn see(&mut self, patches: &Tensor, grid: [usize; 3]) -> Result<MediaRows, String> {
        let pictures = (Encodable::Pictures { grid: grid.map(|side| side as u32) }, patches.clone());
        let rows = self.encode(&[pictures]).map_err(|e| e.to_string())?;
        rows.into_iter().next().ok_or_else(|| "a picture without rows".into())
    }
}

impl EncoderStage<'_> {
    /// One request with all of `media`.
    fn encode(&mut self, media: &[(Encodable, Tensor)]) -> Result<Vec<MediaRows>, ModelError> {
        let rows = self.rows(media);
        self.stage.close(SLOT);
        rows
    }

    fn rows(&mut self, media: &[(Encodable, Tensor)]) -> Result<Vec<MediaRows>, ModelError> {
        let sizes: Vec<Encodable> = media.iter().map(|(size, _)| *size).collect();
        let frames = |size: &Encodable| if let Encodable::Sound { frames } = size { *frames } else { 0 };
        let longest = sizes.iter().map(frames).max().unwrap_or(0);
        let schedule = Schedule::new(self.config, &sizes)?;
        self.stage.open(
            SLOT,
            SequenceSpec::Encoder(EncoderSpec { media: sizes.as_slice().into(), longest, done: 0, grain: Grain::Fine }),
        )?;
        for piece in schedule.pieces_from(0) {
            let (size, features) = &media[piece.medium];
            let axis = usize::from(matches!(size, Encodable::Sound { .. }));
            let numbers = features.narrow(axis, piece.range.start, piece.range.len())?;
            let numbers = Features::Numbers(numbers.contiguous()?.flatten_all()?.to_vec1()?);
            self.stage.push_input(SLOT, Some(StageData::Features(numbers)), false)?;
        }
        let mut rows = Vec::new();
        loop {
            let output = step(self.stage, SequenceWork { slot: SLOT, advance: 1 })?;
            if let Some(StageData::Embeddings(embeddings)) = output.emit {
                let emitted = embeddings.tensor()?;
                rows.extend((0..emitted.dim(0)?).map(|row| emitted.narrow(0, row, 1)));
            }
            if output.finish.is_some() {
                break;
            }
        }
        let rows = rows.into_iter().collect::<candle_core::Result<Vec<_>>>()?;
        let width = self.config.text.hidden_size;
        let media = (0..media.len()).map(|medium| {
            let own = schedule.rows_of(medium);
            let own = Tensor::cat(&rows[own.start as usize..own.end as usize], 0)?;
            let level = |at| own.narrow(1, at, width);
            let deepstack = (width..own.dim(1)?).step_by(width).map(level).collect::<candle_core::Result<_>>()?;
            Ok(MediaRows { rows: level(0)?, deepstack })
        });
        media.collect()
    }
}
