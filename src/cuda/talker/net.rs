//! The talker's weights on the device.

use crate::decoder::{Engine, Stack};
use crate::linear::{Input, Linear, Mode};
use crate::weights::{Uploader, Weight, element_size};
use crate::{Buffer, Gpu};
use omni_config::Precision;
use omni_model::LoadError;
use omni_model::hf::{ChatTokens, Family, TalkerConfig, TtsTokens};
use omni_model::weights::{Loader, Scope};

/// Rows of a table that are projected together while loading.
const LOAD_ROWS: usize = 4096;

/// The weights, shared by all sequences.
pub struct TalkerNet {
    pub(super) config: TalkerConfig,
    pub(super) precision: Precision,
    pub(super) gpu: Gpu,
    pub(super) stack: Stack,
    pub(super) head: Linear,
    /// Embeddings of codec ids, `[ids, hidden]`.
    pub(super) table: Weight,
    pub(super) text: Text,
    pub(super) predictor: Predictor,
}

/// Where the text side of positions comes from.
pub(super) enum Text {
    /// The embeddings of the whole vocabulary, projected when the weights were loaded, so that a step projects nothing.
    Table { rows: Weight, vocabulary: u32, pad: u32, bos: u32, eos: u32 },
    /// Embeddings come from a thinker and are projected when they arrive. `special`: those of padding, begin and end of
    /// text.
    Embeddings { text: Box<Projection>, hidden: Option<Box<Projection>>, special: Weight },
}

/// Of what a thinker hands on: embeddings of text, or its hidden states at media.
pub(super) struct Projection {
    pub first: Linear,
    pub second: Linear,
}

/// The code predictor. Its inputs are looked up in its own width, so that no pass begins with a projection.
pub(super) struct Predictor {
    pub stack: Stack,
    /// From the talker's hidden state, where the widths differ.
    pub projection: Option<Linear>,
    /// Head `i` gives group `i + 1`.
    pub heads: Vec<Linear>,
    /// Table `i` embeds group `i + 1`, `[codes, talker hidden]`.
    pub tables: Vec<Weight>,
    /// Addresses of `tables`, for kernels that use all of them.
    pub table_addresses: Buffer<u64>,
    /// The talker's table and `tables` in the predictor's width, where that differs.
    narrowed: Vec<Weight>,
}

impl TalkerNet {
    /// Loads everything under `talker`. The caller finishes the loader.
    ///
    /// # Errors
    /// When the file cannot be read or the device has no room; tensors that do not fit are reported by
    /// [`Loader::finish`].
    pub fn load(gpu: &Gpu, precision: Precision, loader: &Loader, family: &Family) -> Result<TalkerNet, LoadError> {
        let up = Uploader::new(gpu, precision)?;
        let config = family.talker().clone();
        let (scope, model) = (loader.scope("talker"), loader.scope("talker.model"));
        let (text, inner) = (&config.text, &config.predictor);
        let (hidden, width) = (text.hidden_size, inner.hidden_size);
        let table = up.tensor(&model.at("codec_embedding"), "weight", &[text.vocab_size, hidden])?;
        let head_scope = scope.at("codec_head");
        // As in the reference, stored weights take precedence over the config.
        let head = if text.tie_word_embeddings && !head_scope.has("weight") {
            up.tensor(&model.at("codec_embedding"), "weight", &[text.vocab_size, hidden])?
        } else {
            up.tensor(&head_scope, "weight", &[text.vocab_size, hidden])?
        };
        let scratch = Engine::new(gpu, precision, LOAD_ROWS, &[inner], config.text_projection_size.max(hidden))?;
        let text_side = Text::load(&up, &scratch, loader, &scope, family)?;
        let predictor = Predictor::load(&up, &scratch, &config, &scope.at("code_predictor"), &table)?;
        let net = TalkerNet {
            stack: Stack::load(&up, text, &model)?,
            head: Linear::new(head, None, text.vocab_size, hidden),
            table,
            text: text_side,
            predictor,
            precision,
            gpu: gpu.clone(),
            config,
        };
        debug_assert!(width <= hidden || net.predictor.projection.is_some());
        up.finish()?;
        Ok(net)
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Sizes and ids.
    pub fn config(&self) -> &TalkerConfig {
        &self.config
    }

    /// Whether it takes hidden states of media.
    pub(super) fn takes_media(&self) -> bool {
        matches!(self.text, Text::Embeddings { hidden: Some(_), .. })
    }

    /// Ids of text, for a model that reads text itself.
    pub(super) fn text_vocabulary(&self) -> Option<u32> {
        match self.text {
            Text::Table { vocabulary, .. } => Some(vocabulary),
            Text::Embeddings { .. } => None,
        }
    }
}

impl Text {
    fn load(
        up: &Uploader,
        engine: &Engine,
        loader: &Loader,
        scope: &Scope<'_>,
        family: &Family,
    ) -> Result<Text, LoadError> {
        let config = family.talker();
        let (width, inner, hidden) = (config.text_hidden_size, config.text_projection_size, config.text.hidden_size);
        let load = |name: &str| -> Result<Projection, LoadError> {
            let scope = scope.at(name);
            Ok(Projection {
                first: Linear::load(up, &scope.at("linear_fc1"), width, inner, true)?,
                second: Linear::load(up, &scope.at("linear_fc2"), inner, hidden, true)?,
            })
        };
        let Projection { first, second } = load("text_projection")?;
        let project = |from: &Weight, rows: usize| -> Result<Weight, LoadError> {
            let size = element_size(up.precision());
            let (to, middle) = (up.room(rows * hidden)?, up.room(LOAD_ROWS.min(rows) * inner)?);
            for at in (0..rows).step_by(LOAD_ROWS) {
                let count = LOAD_ROWS.min(rows - at);
                let x = Input::Ready(from.address() + (at * width * size) as u64);
                let y = to.address() + (at * hidden * size) as u64;
                engine.products.run(up.stream(), Mode::Silu, &first, x, middle.address(), count)?;
                let x = Input::Ready(middle.address());
                engine.products.run(up.stream(), Mode::Store, &second, x, y, count)?;
            }
            up.finish()?;
            Ok(to)
        };
        match family {
            Family::Tts(tts) => {
                let vocabulary = tts.text_vocab_size;
                let scope = loader.scope("talker.model.text_embedding");
                let table = up.tensor(&scope, "weight", &[vocabulary, width])?;
                let TtsTokens { tts_pad: pad, tts_bos: bos, tts_eos: eos, .. } = tts.tokens;
                Ok(Text::Table { rows: project(&table, vocabulary)?, vocabulary: vocabulary as u32, pad, bos, eos })
            }
            Family::Omni(omni) => {
                let hears = scope.at("hidden_projection").at("linear_fc1").offers("weight");
                let hidden = hears.then(|| load("hidden_projection").map(Box::new)).transpose()?;
                let ChatTokens { tts_pad, tts_bos, tts_eos, .. } = omni.tokens;
                let shape = [omni.thinker.text.vocab_size, omni.thinker.text.hidden_size];
                let scope = loader.scope("thinker.model.embed_tokens");
                let rows = scope.rows("weight", &shape, &[tts_pad, tts_bos, tts_eos])?;
                let raw = up.host(&rows)?;
                Ok(Text::Embeddings {
                    special: project(&raw, 3)?,
                    text: Box::new(Projection { first, second }),
                    hidden,
                })
            }
        }
    }
}

impl Predictor {
    fn load(
        up: &Uploader,
        engine: &Engine,
        talker: &TalkerConfig,
        scope: &Scope<'_>,
        first: &Weight,
    ) -> Result<Predictor, LoadError> {
        let (config, groups) = (&talker.predictor, talker.num_code_groups);
        let (outer, inner, codes) = (talker.text.hidden_size, config.hidden_size, config.vocab_size);
        let projection = (outer != inner)
            .then(|| Linear::load(up, &scope.at("small_to_mtp_projection"), outer, inner, true))
            .transpose()?;
        let (embeddings, heads) = (scope.at("model").at("codec_embedding"), scope.at("lm_head"));
        let tables = (0..groups - 1)
            .map(|i| up.tensor(&embeddings.at(i), "weight", &[codes, outer]))
            .collect::<Result<Vec<_>, _>>()?;
        let narrow = |table: &Weight, projection: &Linear| -> Result<Weight, LoadError> {
            let rows = table.len() / outer;
            let to = up.room(rows * inner)?;
            engine.products.run(
                up.stream(),
                Mode::Store,
                projection,
                Input::Ready(table.address()),
                to.address(),
                rows,
            )?;
            Ok(to)
        };
        let narrowed = match &projection {
            None => Vec::new(),
            Some(projection) => std::iter::once(first)
                .chain(&tables)
                .map(|table| narrow(table, projection))
                .collect::<Result<_, _>>()?,
        };
        let addresses: Vec<u64> = tables.iter().map(Weight::address).collect();
        let heads = (0..groups - 1).map(|i| Linear::load(up, &heads.at(i), inner, codes, false));
        let predictor = Predictor {
            stack: Stack::load(up, config, &scope.at("model"))?,
            heads: heads.collect::<Result<_, _>>()?,
            table_addresses: up.gpu().upload("table addresses", &addresses)?,
            projection,
            tables,
            narrowed,
        };
        up.finish()?;
        Ok(predictor)
    }

    /// Address of the table that embeds group `group` in this model's width; 0 is the talker's table, at `first`.
    pub fn narrowed(&self, group: usize, first: u64) -> u64 {
        match (self.narrowed.get(group), group) {
            (Some(table), _) => table.address(),
            (None, 0) => first,
            (None, group) => self.tables[group - 1].address(),
        }
    }
}
