//! Runs the talker of either family the way the reference does, several requests in one batch, greedy, and records the
//! same tensors.

use super::generate::Trace;
use super::media::axes;
use candle_core::{D, Result, Tensor};
use omni_model::sampling::{History, Sampler, SamplingParams};
use omni_model::talker::{PredictorCaches, Talker, TalkerPrompt, TextSide};
use omni_model::transformer::{DecoderStack, KvCache, MediaInput, Segment};

/// A prompt to be spoken, with its whole text.
pub(super) struct Speech<'a> {
    pub talker: &'a Talker,
    pub prompt: &'a TalkerPrompt,
    /// Every input embedding, projected: `[n, hidden]`.
    pub inputs: Tensor,
    /// At most this many code-0 tokens.
    pub limit: usize,
    /// Ends the speech, but not before `min_tokens`.
    pub eos: &'a [u32],
    pub min_tokens: usize,
    /// Of code 0; acts although everything is greedy.
    pub repetition_penalty: f32,
    /// Axes on which the reference stores the positions of steps.
    pub axes: usize,
    /// Dimensions of 1 that the reference puts before the predictor's.
    pub batches: usize,
}

/// Speaks all requests to their ends, one batch for every step. Each has its own trace.
pub(super) fn speak(speeches: &[Speech<'_>], traces: &mut [Trace]) -> Result<()> {
    let Some(talker) = speeches.first().map(|speech| speech.talker) else { return Ok(()) };
    let stack = talker.stack();
    let prompts = speeches.iter().map(Speech::prompt_embeddings).collect::<Result<Vec<_>>>()?;
    let mut sequences = Vec::new();
    for (speech, trace) in speeches.iter().zip(traces) {
        sequences.push(Sequence { speech, trace, run: Run::new(stack)?, next: None, steps: Steps::default() });
    }
    let media = media_input(sequences.iter().zip(&prompts));
    let hidden = Run::forward_all(stack, sequences.iter_mut().map(|s| &mut s.run), &prompts, &media)?;
    for ((sequence, prompt), hidden) in sequences.iter_mut().zip(&prompts).zip(&hidden) {
        sequence.note_prefill(prompt, hidden)?;
    }
    let mut caches = PredictorCaches::default();
    loop {
        for sequence in &mut sequences {
            sequence.pick()?;
        }
        let mut speaking: Vec<_> = sequences.iter_mut().filter(|sequence| sequence.next.is_some()).collect();
        if speaking.is_empty() {
            break;
        }
        let inputs = frames(talker, &mut caches, &mut speaking)?;
        let media = media_input(speaking.iter().map(|s| &**s).zip(&inputs));
        Run::forward_all(stack, speaking.iter_mut().map(|s| &mut s.run), &inputs, &media)?;
        for (sequence, input) in speaking.into_iter().zip(inputs) {
            sequence.steps.inputs.push(input);
            sequence.next = Some(talker.logits(&sequence.run.residual)?);
        }
    }
    sequences.into_iter().try_for_each(|sequence| sequence.steps.note(sequence.speech, sequence.trace))
}

/// Positions of the next inputs of a batch, if a prompt has others than 0, 1, 2, ...
fn media_input<'a>(batch: impl Iterator<Item = (&'a Sequence<'a>, &'a Tensor)> + Clone) -> MediaInput {
    if batch.clone().all(|(sequence, _)| sequence.speech.prompt.axes().is_none()) {
        return MediaInput::default();
    }
    let mut all = [const { Vec::new() }; 3];
    for (sequence, x) in batch {
        let first = sequence.run.cache.len();
        let range = first..first + x.dims()[0];
        let own = match sequence.speech.prompt.axes() {
            Some(positions) => axes(positions, range),
            None => [0, 1, 2].map(|_| range.clone().map(|at| at as f32).collect()),
        };
        all.iter_mut().zip(own).for_each(|(all, own)| all.extend(own));
    }
    MediaInput { positions: Some(all), ..MediaInput::default() }
}

/// Completes the frames of the codes 0 that were picked last; returns the talker's next inputs.
fn frames(talker: &Talker, caches: &mut PredictorCaches, speaking: &mut [&mut Sequence<'_>]) -> Result<Vec<Tensor>> {
    let last: Vec<_> = speaking.iter().filter_map(|s| s.next.as_ref().map(|(hidden, _)| hidden.clone())).collect();
    let codes: Vec<_> = speaking.iter().filter_map(|s| s.steps.codec0.last().copied()).collect();
    let (last, first) = (Tensor::cat(&last, 0)?, talker.embed(&codes)?);
    let (mut hidden, mut logits) = (Vec::new(), Vec::new());
    let frames = talker.predictor().frame(caches, &last, &first, |pass| {
        hidden.push(pass.hidden.clone());
        logits.push(pass.logits.clone());
        pass.logits.argmax(D::Minus1)?.to_vec1::<u32>()
    })?;
    let mut inputs = Vec::new();
    for (i, sequence) in speaking.iter_mut().enumerate() {
        let own = |passes: &[Tensor]| -> Result<Tensor> {
            Tensor::cat(&passes.iter().map(|pass| pass.narrow(0, i, 1)).collect::<Result<Vec<_>>>()?, 0)
        };
        let (last, first) = (last.narrow(0, i, 1)?, first.narrow(0, i, 1)?);
        sequence.steps.predictor_inputs.push(Tensor::cat(&[&last, &first], 0)?);
        sequence.steps.predictor_hidden.push(own(&hidden)?);
        sequence.steps.predictor_logits.push(own(&logits)?);
        sequence.trace.frames.push([&codes[i..=i], &frames.codes[i]].concat());
        let text = sequence.speech.text(sequence.trace.frames.len() as u32)?;
        inputs.push(((first + frames.embedded.narrow(0, i, 1)?)? + text)?);
    }
    Ok(inputs)
}

/// One request of a batch.
struct Sequence<'a> {
    speech: &'a Speech<'a>,
    trace: &'a mut Trace,
    run: Run,
    /// Last hidden state and logits of the last position; `None` when the speech has ended.
    next: Option<(Tensor, Tensor)>,
    steps: Steps,
}

impl Sequence<'_> {
    fn note_prefill(&mut self, prompt: &Tensor, hidden: &[Tensor]) -> Result<()> {
        let (speech, trace, p) = (self.speech, &mut *self.trace, self.speech.prompt.positions() as usize);
        let (last_hidden, logits) = speech.talker.logits(&self.run.residual)?;
        speech.note_text(trace)?;
        if speech.prompt.axes().is_none() {
            trace.ints("talker.prefill.position_ids", [3, 1, p], positions(3, 0..p));
        }
        trace.floats("talker.prefill.inputs_embeds", prompt, 1)?;
        for (i, state) in hidden.iter().enumerate() {
            trace.floats(format!("talker.prefill.hidden.{i}"), state, 1)?;
        }
        trace.floats("talker.prefill.logits", &logits, 1)?;
        self.next = Some((last_hidden.narrow(0, p - 1, 1)?, logits.narrow(0, p - 1, 1)?));
        Ok(())
    }

    /// Picks the next code 0, which may end the speech.
    fn pick(&mut self) -> Result<()> {
        let Some((hidden, logits)) = &self.next else { return Ok(()) };
        let code = self.steps.pick(logits, self.speech)?;
        self.steps.hidden.push(hidden.clone());
        self.steps.logits.push(logits.clone());
        self.steps.codec0.push(code);
        if self.speech.eos.contains(&code) || self.steps.codec0.len() >= self.speech.limit {
            self.next = None;
        }
        Ok(())
    }
}

impl Speech<'_> {
    fn prompt_embeddings(&self) -> Result<Tensor> {
        let range = 0..self.prompt.positions();
        match self.talker.prompt_embeddings(self.prompt, range, |input| self.input(input))? {
            Some(prompt) => Ok(prompt),
            None => candle_core::bail!("the talker's prompt needs more embeddings than there are"),
        }
    }

    /// The text that follows the prompt: until its end, or one embedding of padding where there is none.
    fn note_text(&self, trace: &mut Trace) -> Result<()> {
        let sides = (1..).map_while(|step| self.side(step).filter(|side| *side != TextSide::Pad));
        let mut trailing = sides.map(|side| self.embedding(side)).collect::<Result<Vec<_>>>()?;
        let pad = self.embedding(TextSide::Pad)?;
        if trailing.is_empty() {
            trailing.push(pad.clone());
        }
        trace.floats("talker.trailing_text_hidden", &Tensor::cat(&trailing, 0)?, 1)?;
        trace.floats("talker.tts_pad_embed", &pad, 1)
    }

    /// The text embedding of a decode step.
    fn text(&self, step: u32) -> Result<Tensor> {
        match self.side(step) {
            Some(side) => self.embedding(side),
            None => candle_core::bail!("no text side for step {step}"),
        }
    }

    fn side(&self, step: u32) -> Option<TextSide> {
        self.prompt.text_side(step, self.inputs.dims()[0] as u32, true)
    }

    fn embedding(&self, side: TextSide) -> Result<Tensor> {
        match self.talker.text_embedding(side, |input| self.input(input)) {
            Some(embedding) => Ok(embedding),
            None => candle_core::bail!("the talker has no embedding for {side:?}"),
        }
    }

    fn input(&self, at: u32) -> Option<Tensor> {
        self.inputs.narrow(0, at as usize, 1).ok()
    }
}

/// A sequence with its cache.
pub(super) struct Run {
    cache: KvCache,
    /// The residual stream of the last forward, before the final norm.
    pub residual: Tensor,
}

impl Run {
    pub fn new(stack: &DecoderStack) -> Result<Run> {
        Ok(Run { cache: stack.new_cache()?, residual: Tensor::new(0f32, stack.device())? })
    }

    /// Appends positions; returns hidden states as the reference counts them: the input, the output of each layer but
    /// the last, and the last one after the final norm.
    pub fn forward(&mut self, stack: &DecoderStack, x: &Tensor, media: &MediaInput) -> Result<Vec<Tensor>> {
        let mut hidden = Run::forward_all(stack, std::iter::once(self), std::slice::from_ref(x), media)?;
        Ok(hidden.pop().unwrap_or_default())
    }

    /// [`Run::forward`] of several sequences in one batch.
    fn forward_all<'a>(
        stack: &DecoderStack,
        runs: impl Iterator<Item = &'a mut Run>,
        inputs: &[Tensor],
        media: &MediaInput,
    ) -> Result<Vec<Vec<Tensor>>> {
        let (mut segments, mut residuals) = (Vec::new(), Vec::new());
        for (run, x) in runs.zip(inputs) {
            segments.push(Segment { cache: &mut run.cache, len: x.dim(0)? });
            residuals.push(&mut run.residual);
        }
        let mut layers = Vec::new();
        let residual = stack
            .forward_media(&Tensor::cat(inputs, 0)?, &mut segments, media, |_, state| layers.push(state.clone()))?;
        layers.push(stack.norm(&residual)?);
        let mut from = 0;
        let mut hidden = Vec::new();
        for (own, x) in residuals.into_iter().zip(inputs) {
            let part = |all: &Tensor| all.narrow(0, from, x.dim(0)?)?.contiguous();
            *own = part(&residual)?;
            hidden.push(layers.iter().map(part).collect::<Result<Vec<_>>>()?);
            from += x.dim(0)?;
        }
        Ok(hidden)
    }
}

/// The recorded tensors of all talker steps.
#[derive(Default)]
struct Steps {
    sampler: Sampler,
    history: History,
    codec0: Vec<u32>,
    hidden: Vec<Tensor>,
    logits: Vec<Tensor>,
    inputs: Vec<Tensor>,
    predictor_inputs: Vec<Tensor>,
    predictor_hidden: Vec<Tensor>,
    predictor_logits: Vec<Tensor>,
}

impl Steps {
    /// The most likely code 0 after the penalty on earlier ones and suppression.
    fn pick(&mut self, logits: &Tensor, speech: &Speech<'_>) -> Result<u32> {
        let mut logits = logits.flatten_all()?.to_vec1::<f32>()?;
        if self.codec0.len() < speech.min_tokens {
            // Cases may end with another token than the config's.
            for eos in speech.eos {
                if let Some(logit) = logits.get_mut(*eos as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let params = SamplingParams { repetition_penalty: speech.repetition_penalty, ..SamplingParams::GREEDY };
        let picked = self.sampler.sample(&logits, &params, &self.history, &speech.talker.suppressed(false), 0.0);
        let code = picked.map_err(candle_core::Error::wrap)?;
        self.history.push(code);
        Ok(code)
    }

    fn note(&self, speech: &Speech<'_>, trace: &mut Trace) -> Result<()> {
        let (steps, frames, batches) = (self.codec0.len(), trace.frames.len(), speech.batches);
        let prompt = speech.prompt.positions() as usize;
        trace.ints("talker.codec0_sequence", [1, steps], self.codec0.iter().copied());
        trace.floats("talker.step_last_hidden", &Tensor::cat(&self.hidden, 0)?, 1)?;
        trace.floats("talker.step_logits", &Tensor::cat(&self.logits, 0)?, 1)?;
        if frames == 0 {
            return Ok(());
        }
        match speech.prompt.axes() {
            Some(positions) => {
                trace.positions("talker.step_position_ids", axes(positions, prompt..prompt + frames));
            }
            None => {
                let positions = positions(speech.axes, prompt..prompt + frames);
                trace.ints("talker.step_position_ids", [speech.axes, frames], positions);
            }
        }
        trace.floats("talker.step_inputs_embeds", &Tensor::cat(&self.inputs, 0)?, 1)?;
        trace.floats("code_predictor.inputs", &Tensor::stack(&self.predictor_inputs, 0)?, batches)?;
        trace.floats("code_predictor.last_hidden", &Tensor::stack(&self.predictor_hidden, 0)?, batches)?;
        trace.floats("code_predictor.logits", &Tensor::stack(&self.predictor_logits, 0)?, batches)?;
        trace.floats("frame_hidden", &Tensor::cat(&self.hidden[..frames], 0)?, 0)
    }
}

/// The same positions on some axes.
pub(super) fn positions(axes: usize, range: std::ops::Range<usize>) -> impl Iterator<Item = u32> {
    (0..axes).flat_map(move |_| range.clone().map(|p| p as u32))
}
