//! Runs a text case the way the reference does, one request, greedy, and notes everything that the reference notes.

use super::value::{Value, Values};
use crate::model::hf::OmniConfig;
use crate::model::prompt::ChatPrompt;
use crate::model::sampling::{History, Sampler, SamplingParams};
use crate::model::talker::{PredictorCaches, Talker, TalkerPrompt, TextSide};
use crate::model::thinker::Thinker;
use crate::model::transformer::{DecoderStack, KvCache, Segment};
use candle_core::{D, Result, Tensor};

/// What a generation case asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Prompt tokens, and which of them the talker gets.
    pub prompt: ChatPrompt,
    /// Codec id of the speaker.
    pub speaker: u32,
    /// At most this many answer tokens.
    pub text_tokens: usize,
    /// Ends the answer.
    pub thinker_eos: Vec<u32>,
    /// At most this many code-0 tokens.
    pub codec_tokens: usize,
    /// Ends the speech.
    pub talker_eos: Vec<u32>,
    /// Of code 0; acts although everything is greedy.
    pub repetition_penalty: f32,
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub struct Trace {
    /// Everything by the reference's names.
    pub values: Values,
    /// Frame after frame, all groups.
    pub frames: Vec<Vec<u32>>,
}

/// Runs thinker and talker.
///
/// # Errors
/// What the device says, and tokens outside a vocabulary.
pub fn generate(config: &OmniConfig, thinker: &Thinker, talker: &Talker, request: &Request) -> Result<Trace> {
    let mut trace = Trace::default();
    let answer = think(config, thinker, request, &mut trace)?;
    speak(config, thinker, talker, request, &answer, &mut trace)?;
    Ok(trace)
}

/// Samples the answer; returns it with its last token.
fn think(config: &OmniConfig, thinker: &Thinker, request: &Request, trace: &mut Trace) -> Result<Vec<u32>> {
    let (prompt, stack) = (request.prompt.ids.as_ref(), thinker.stack());
    let accept = config.accept_hidden_layer;
    let mut run = Run::new(stack)?;
    let mut step_logits = Vec::new();
    let mut accepted = Vec::new();
    let mut answer = Vec::new();

    let embedded = thinker.embed(prompt)?;
    let hidden = run.forward(stack, &embedded)?;
    let logits = thinker.logits(&run.residual)?;
    trace.floats("thinker.prefill.inputs_embeds", &embedded, 1)?;
    for (i, state) in hidden.iter().enumerate() {
        trace.floats(format!("thinker.prefill.hidden.{i}"), state, 1)?;
    }
    trace.floats("thinker.prefill.logits", &logits, 1)?;
    accepted.push(hidden[accept].clone());
    let mut last = logits.narrow(0, prompt.len() - 1, 1)?;
    loop {
        let token = last.argmax(D::Minus1)?.to_vec1::<u32>()?[0];
        step_logits.push(last);
        answer.push(token);
        if request.thinker_eos.contains(&token) || answer.len() >= request.text_tokens {
            break;
        }
        let hidden = run.forward(stack, &thinker.embed(&[token])?)?;
        accepted.push(hidden[accept].clone());
        last = thinker.logits(&run.residual)?;
    }
    let sequence = [prompt, &answer].concat();
    let (t, n) = (prompt.len(), answer.len());
    trace.ints("input_ids", [1, t], prompt.iter().copied());
    trace.ints("thinker.sequences", [1, t + n], sequence.iter().copied());
    trace.ints("thinker.prefill.position_ids", [3, 1, t], positions(0..t));
    trace.ints("thinker.decode.position_ids", [3, n - 1], positions(t..t + n - 1));
    trace.floats("thinker.hidden0.all", &thinker.embed(&sequence[..t + n - 1])?, 1)?;
    trace.floats("thinker.accept_hidden.all", &Tensor::cat(&accepted, 0)?, 1)?;
    trace.floats("thinker.step_logits", &Tensor::cat(&step_logits, 0)?, 1)?;
    Ok(answer)
}

/// Speaks the answer, whose last token is never embedded.
fn speak(
    config: &OmniConfig,
    thinker: &Thinker,
    talker: &Talker,
    request: &Request,
    answer: &[u32],
    trace: &mut Trace,
) -> Result<()> {
    let ranges = request.prompt.emit.iter().flat_map(Clone::clone);
    let spoken = ranges.map(|at| request.prompt.ids[at as usize]);
    let inputs: Vec<u32> = spoken.chain(answer[..answer.len() - 1].iter().copied()).collect();
    let user_rows = request.prompt.user_rows;
    let layout = TalkerPrompt::omni(user_rows, request.speaker, &config.talker.tokens);
    if inputs.len() as u32 <= user_rows + 3 {
        candle_core::bail!("the answer is empty: there is nothing to speak");
    }
    let projected = talker.project(&thinker.embed(&inputs)?)?;
    let input = |row: u32| projected.narrow(0, row as usize, 1).ok();
    let text_row = |side: TextSide| match talker.text_row(side, input) {
        Some(row) => Ok(row),
        None => candle_core::bail!("the talker has no row for {side:?}"),
    };
    let Some(prompt) = talker.prompt_rows(&layout, 0..layout.positions(), input)? else {
        candle_core::bail!("the talker's prompt needs more rows than there are")
    };
    let p = layout.positions() as usize;
    let trailing =
        (1..).map_while(|step| layout.text_side(step, inputs.len() as u32, true).filter(|side| *side != TextSide::Pad));
    let trailing = trailing.map(text_row).collect::<Result<Vec<_>>>()?;
    trace.floats("talker.trailing_text_hidden", &Tensor::cat(&trailing, 0)?, 1)?;
    trace.floats("talker.tts_pad_embed", &text_row(TextSide::Pad)?, 1)?;
    let ids = inputs[..user_rows as usize].iter().copied().chain([config.tokens.tts_pad; 9]);
    trace.ints("talker.prefill.input_ids", [1, p], ids);
    trace.ints("talker.prefill.position_ids", [3, 1, p], positions(0..p));

    let stack = talker.stack();
    let mut run = Run::new(stack)?;
    let hidden = run.forward(stack, &prompt)?;
    let (last_hidden, logits) = talker.logits(&run.residual)?;
    trace.floats("talker.prefill.inputs_embeds", &prompt, 1)?;
    for (i, state) in hidden.iter().enumerate() {
        trace.floats(format!("talker.prefill.hidden.{i}"), state, 1)?;
    }
    trace.floats("talker.prefill.logits", &logits, 1)?;

    let mut steps = Steps::default();
    let mut caches = PredictorCaches::default();
    let (mut last_hidden, mut logits) = (last_hidden.narrow(0, p - 1, 1)?, logits.narrow(0, p - 1, 1)?);
    loop {
        let code = steps.pick(&logits, request, talker)?;
        steps.hidden.push(last_hidden.clone());
        steps.logits.push(logits);
        steps.codec0.push(code);
        if request.talker_eos.contains(&code) || steps.codec0.len() >= request.codec_tokens {
            break;
        }
        let first = talker.embed(&[code])?;
        let (mut pass_hidden, mut pass_logits) = (Vec::new(), Vec::new());
        let frames = talker.predictor().frame(&mut caches, &last_hidden, &first, |pass| {
            pass_hidden.push(pass.hidden.clone());
            pass_logits.push(pass.logits.clone());
            pass.logits.argmax(D::Minus1)?.to_vec1::<u32>()
        })?;
        steps.predictor_inputs.push(Tensor::cat(&[&last_hidden, &first], 0)?);
        steps.predictor_hidden.push(Tensor::cat(&pass_hidden, 0)?);
        steps.predictor_logits.push(Tensor::cat(&pass_logits, 0)?);
        trace.frames.push([vec![code], frames.codes.concat()].concat());

        let step = trace.frames.len() as u32;
        let Some(side) = layout.text_side(step, inputs.len() as u32, true) else {
            candle_core::bail!("no text side for step {step}")
        };
        let next = ((first + frames.embedded)? + text_row(side)?)?;
        run.forward(stack, &next)?;
        steps.inputs.push(next);
        (last_hidden, logits) = talker.logits(&run.residual)?;
    }
    steps.note(p, trace)
}

/// A row with its cache.
struct Run {
    cache: KvCache,
    /// Of the last forward, before the final norm.
    residual: Tensor,
}

impl Run {
    fn new(stack: &DecoderStack) -> Result<Run> {
        Ok(Run { cache: stack.new_cache()?, residual: Tensor::new(0f32, stack.device())? })
    }

    /// Appends positions; returns hidden states as the reference counts them: the input, the output of each layer but
    /// the last, and the last one after the final norm.
    fn forward(&mut self, stack: &DecoderStack, x: &Tensor) -> Result<Vec<Tensor>> {
        let mut hidden = Vec::new();
        let mut segments = [Segment { cache: &mut self.cache, len: x.dim(0)? }];
        self.residual = stack.forward_tapped(x, &mut segments, |_, state| hidden.push(state.clone()))?;
        hidden.push(stack.norm(&self.residual)?);
        Ok(hidden)
    }
}

/// What is noted of every talker step.
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
    fn pick(&mut self, logits: &Tensor, request: &Request, talker: &Talker) -> Result<u32> {
        let logits = logits.flatten_all()?.to_vec1::<f32>()?;
        let params = SamplingParams { repetition_penalty: request.repetition_penalty, ..SamplingParams::GREEDY };
        let picked = self.sampler.sample(&logits, &params, &self.history, &talker.suppressed(false), 0.0);
        let code = picked.map_err(candle_core::Error::wrap)?;
        self.history.push(code);
        Ok(code)
    }

    fn note(&self, prompt: usize, trace: &mut Trace) -> Result<()> {
        let (steps, frames) = (self.codec0.len(), trace.frames.len());
        trace.ints("talker.codec0_sequence", [1, steps], self.codec0.iter().copied());
        trace.floats("talker.step_last_hidden", &Tensor::cat(&self.hidden, 0)?, 1)?;
        trace.floats("talker.step_logits", &Tensor::cat(&self.logits, 0)?, 1)?;
        if frames == 0 {
            return Ok(());
        }
        trace.floats("talker.step_inputs_embeds", &Tensor::cat(&self.inputs, 0)?, 1)?;
        trace.ints("talker.step_position_ids", [3, frames], positions(prompt..prompt + frames));
        trace.floats("code_predictor.inputs", &Tensor::stack(&self.predictor_inputs, 0)?, 0)?;
        trace.floats("code_predictor.last_hidden", &Tensor::stack(&self.predictor_hidden, 0)?, 0)?;
        trace.floats("code_predictor.logits", &Tensor::stack(&self.predictor_logits, 0)?, 0)?;
        let groups = trace.frames[0].len();
        let codes: Vec<u32> = (0..groups).flat_map(|g| trace.frames.iter().map(move |frame| frame[g])).collect();
        trace.ints("codes", [1, groups, frames], codes);
        Ok(())
    }
}

/// The same positions on the three axes.
fn positions(range: std::ops::Range<usize>) -> impl Iterator<Item = u32> {
    (0..3).flat_map(move |_| range.clone().map(|p| p as u32))
}

impl Trace {
    fn floats(&mut self, name: impl Into<String>, tensor: &Tensor, leading: usize) -> Result<()> {
        self.values.insert(name.into(), Value::floats(tensor, leading)?);
        Ok(())
    }

    fn ints(&mut self, name: &str, shape: impl Into<Vec<usize>>, data: impl IntoIterator<Item = u32>) {
        self.values.insert(name.to_owned(), Value::ints(shape, data));
    }
}
