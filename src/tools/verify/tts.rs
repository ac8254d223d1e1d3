//! A case of Qwen3-TTS: the prompts that serving makes of its texts and voices, spoken the way the reference does.

use super::batch::Part;
use super::generate::Trace;
use super::manifest::Manifest;
use super::nets::Nets;
use super::speak::{Speech, speak};
use super::value::{Data, Value, Values};
use candle_core::Result;
use omni_model::prompt::{Reference, Speaker, TtsPrompt, TtsPrompter, TtsRequest};
use std::sync::Arc;

/// The tokens behind the text, and those behind a transcript.
const TAIL: &str = "<|im_end|>\n<|im_start|>assistant\n";
const TRANSCRIPT_TAIL: &str = "<|im_end|>\n";

/// What a case asks for.
pub(super) struct Case {
    pub prompt: TtsPrompt,
    /// Codes of the recording that the speech continues, frame after frame.
    pub recording: Vec<u32>,
    /// At most this many code-0 tokens.
    pub limit: u32,
    /// The end is not sampled before this many.
    pub min_tokens: u32,
    /// Of code 0; acts although everything is greedy.
    pub repetition_penalty: f32,
}

/// Reads a case. Removes the voice from the reference, because it is an input.
pub(super) fn prepare(
    manifest: &Manifest,
    reference: &mut Values,
    prompter: &TtsPrompter,
) -> std::result::Result<Case, String> {
    let vector = reference.remove("ref_spk_embedding").map(|value| floats(&value)).transpose()?;
    let codes = reference.remove("ref_code").map(|value| value.tokens()).transpose()?.unwrap_or_default();
    let request = request(manifest, reference.contains_key("instruct_ids"), vector, &codes)?;
    let case = Case {
        prompt: prompter.prompt(&request).map_err(|e| format!("{}: {e}", e.field()))?,
        limit: manifest.whole("n_limit")?,
        min_tokens: manifest.whole("min_new_tokens")?,
        repetition_penalty: manifest.number("repetition_penalty")?,
        recording: codes,
    };
    if case.limit == 0 {
        return Err("meta.n_limit = 0: expected at least 1".into());
    }
    Ok(case)
}

/// Runs the talker for all requests of a case at once. Also returns the codes of each one's recording.
pub(super) fn run(parts: &mut [Part], nets: &Nets) -> std::result::Result<Vec<(Trace, Vec<u32>)>, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let prompter = nets.checkpoint.tts_prompter().map_err(|e| text(&e))?;
    let tail = |tail: &str| prompter.tokenizer().encode_structure(tail).map_err(|e| text(&e));
    let (text_tail, transcript_tail) = (tail(TAIL)?, tail(TRANSCRIPT_TAIL)?);
    let talker = nets.talker().map_err(|e| text(&e))?;
    let (mut cases, mut ends, mut traces) = (Vec::new(), Vec::new(), Vec::new());
    for Part { manifest, reference } in parts {
        let case = prepare(manifest, reference, &prompter)?;
        let mut trace = Trace::default();
        note_ids(&case.prompt, &text_tail, &transcript_tail, &mut trace);
        ends.push(manifest.wholes("eos")?);
        cases.push(case);
        traces.push(trace);
    }
    let speech = |(case, eos)| -> Result<Speech<'_>> {
        let Case { prompt, limit, min_tokens, repetition_penalty, .. }: &Case = case;
        let eos: &Vec<u32> = eos;
        Ok(Speech {
            talker,
            prompt: &prompt.prompt,
            inputs: talker.read(&prompt.tokens)?,
            limit: *limit as usize,
            eos,
            min_tokens: *min_tokens as usize,
            repetition_penalty: *repetition_penalty,
            axes: 1,
            batches: 1,
        })
    };
    let speeches = cases.iter().zip(&ends).map(speech).collect::<Result<Vec<_>>>().map_err(|e| text(&e))?;
    speak(&speeches, &mut traces).map_err(|e| text(&e))?;
    drop(speeches);
    for (case, trace) in cases.iter().zip(&mut traces) {
        let positions = case.prompt.prompt.positions() as usize;
        trace.ints("talker.prefill.attention_mask", [1, positions], vec![1; positions]);
        if let Some(groups) = trace.frames.first().map(Vec::len) {
            let codes = trace.frames.concat();
            trace.ints("codes", [trace.frames.len(), groups], codes);
        }
    }
    Ok(traces.into_iter().zip(cases.into_iter().map(|case| case.recording)).collect())
}

fn request<'a>(
    manifest: &'a Manifest,
    instructed: bool,
    vector: Option<Arc<[f32]>>,
    codes: &[u32],
) -> std::result::Result<TtsRequest<'a>, String> {
    let speaker = match vector {
        Some(x_vector) => {
            let recorded = || -> std::result::Result<_, String> {
                Ok(Reference { text: manifest.text("ref_text")?.into(), codes: codes.into() })
            };
            let reference = if codes.is_empty() { None } else { Some(recorded()?) };
            Speaker::Cloned { x_vector, reference }
        }
        None => manifest.only("speakers")?.map_or(Speaker::Unnamed, Speaker::Named),
    };
    Ok(TtsRequest {
        text: manifest.text("text")?,
        language: manifest.only("languages")?,
        speaker,
        // The reference drops instructions that a checkpoint does not follow; this program refuses them.
        instruct: manifest.meta.get("instruct").and_then(|value| value.as_str()).filter(|_| instructed),
        non_streaming: manifest.meta.get("non_streaming_mode").and_then(|value| value.as_bool()),
    })
}

/// The ids as the reference keeps them: text, transcript and instruction each with the tokens around it.
fn note_ids(prompt: &TtsPrompt, tail: &[u32], transcript_tail: &[u32], trace: &mut Trace) {
    let (instruct, rest) = prompt.tokens.split_at(prompt.instruct_len);
    let (header, rest) = rest.split_at(rest.len().min(3));
    let (transcript, words) = rest.split_at(prompt.reference_len);
    let mut note = |name: &str, parts: &[&[u32]]| {
        let ids = parts.concat();
        trace.ints(name, [1, ids.len()], ids);
    };
    note("input_ids", &[header, words, tail]);
    note("instruct_ids", &[instruct]);
    note("ref_ids", &[header, transcript, transcript_tail]);
}

fn floats(value: &Value) -> std::result::Result<Arc<[f32]>, String> {
    match &value.data {
        Data::Floats(numbers) => Ok(numbers.as_slice().into()),
        Data::Ints(_) => Err("ref_spk_embedding has whole numbers: expected floats".into()),
    }
}
