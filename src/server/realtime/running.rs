//! A request of a session while the engine serves it: begun with what the session asked for, read in parts of at most a
//! frame of sound. Dropping it ends the request in every stage.

use crate::auth::Caller;
use crate::budget::Held;
use crate::chat_parts::{self, Counts, SourceRef, What};
use crate::error::ApiError;
use crate::media::{self, Loaded};
use crate::state::App;
use omni_audio::{AudioFormat, AudioWriter, Law, Sound};
use omni_core::ids::Frames;
use omni_engine::{
    ChatMessage, Content, Detail, Event, FinishReason, GenerateRequest, MediaSource, Output, Part, RequestOptions,
    ResponseStream, SamplingOverrides, Slo, ToolCall,
};
use omni_realtime::{AnswerPart, Call, Detail as Seen, Ending, Job, JobId, PromptPart, Usage, WireFormat};
use std::sync::Arc;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, error};

/// What begins a call of a function.
const CALL: &str = "<tool_call>";

/// See the module.
pub(super) struct Running {
    pub id: JobId,
    /// Whether nothing takes its answer.
    pub prepares: bool,
    app: Arc<App>,
    /// What a call of a function, with which a spoken answer ends, is to be asked for, and its part of the budget.
    rest: Option<(Job, Held)>,
    /// Bytes of text that were given, and those of a request that goes on behind them which are still to be skipped.
    given: usize,
    skipped: usize,
    /// What the spoken part used.
    spoken: Option<Usage>,
    caller: Caller,
    sample_rate: u32,
    /// Samples of a frame.
    frame: usize,
    state: State,
}

enum State {
    Beginning(Beginning),
    Serving(Box<Serving>),
    Over,
}

/// A request on its way to the engine. It is a task of its own: what it waits for and holds belongs to all clients, and
/// nobody asks for the answer while its own client does not read.
struct Beginning(AbortOnDropHandle<Result<Begun, ApiError>>);

impl Beginning {
    fn new(begun: impl Future<Output = Result<Begun, ApiError>> + Send + 'static) -> Beginning {
        Beginning(AbortOnDropHandle::new(tokio::spawn(begun.in_current_span())))
    }

    /// What came of it. It may be dropped and called again; not after it has told.
    async fn outcome(&mut self) -> Result<Begun, ApiError> {
        (&mut self.0).await.unwrap_or_else(|broken| {
            error!(%broken, "a request of a session was not begun");
            Err(ApiError::internal("the request was not begun"))
        })
    }
}

/// A request that the engine has taken.
struct Begun {
    stream: ResponseStream,
    writer: AudioWriter,
}

struct Serving {
    begun: Begun,
    /// Sound that the engine has given, and how much of it is written.
    samples: Arc<[f32]>,
    at: usize,
    /// What comes behind the last sound.
    last: Option<AnswerPart>,
    /// Whether the text so far ends with the token that begins a call.
    calls: bool,
}

impl Running {
    /// Begins a request. `counts`: whether it is one more of its key than the request that opened the session.
    pub fn begin(app: &Arc<App>, caller: Caller, job: Job, counts: bool) -> Running {
        let info = app.service.info();
        let (id, prepares) = (job.id, job.prepares);
        let (sample_rate, frame) = (info.sample_rate, info.samples_per_frame.max(1) as usize);
        let (own, mut held) = (own_bytes(&job), Held::nothing(&app.budget));
        let mut has_room = held.take(own);
        let mut rest = None;
        if has_room && job.speaks && !job.tools.is_empty() {
            let mut held = held.another();
            has_room = held.take(own);
            rest = has_room.then(|| (Job { speaks: false, ..job.clone() }, held));
        }
        let state = State::Beginning(match has_room {
            true => Beginning::new(begin(Arc::clone(app), caller.clone(), (job, held), counts)),
            false => Beginning::new(std::future::ready(Err(held.exhausted()))),
        });
        let app = Arc::clone(app);
        Running { id, prepares, app, rest, given: 0, skipped: 0, spoken: None, caller, sample_rate, frame, state }
    }

    /// Takes the text of a token: what of it was not given before.
    fn written(&mut self, mut text: String) -> Option<AnswerPart> {
        let known = text.len().min(self.skipped);
        self.skipped -= known;
        if !text.is_char_boundary(known) {
            return Some(self.fail(ApiError::internal("the same request was answered in another way")));
        }
        text.drain(..known);
        self.given += text.len();
        (!text.is_empty()).then_some(AnswerPart::Text(text))
    }

    /// Asks for the call with which the spoken part has ended: the same request for text alone, whose text is the same
    /// and goes on.
    fn call(&mut self, rest: (Job, Held), spoken: Usage) {
        (self.spoken, self.skipped) = (Some(spoken), self.given);
        self.state = State::Beginning(Beginning::new(begin(Arc::clone(&self.app), self.caller.clone(), rest, false)));
    }

    /// The next part. It may be dropped and called again; not after the last part.
    pub async fn next(&mut self) -> AnswerPart {
        loop {
            match &mut self.state {
                State::Beginning(beginning) => match beginning.outcome().await {
                    Ok(begun) => {
                        let serving = Serving { begun, samples: [].into(), at: 0, last: None, calls: false };
                        self.state = State::Serving(Box::new(serving));
                    }
                    Err(error) => return self.fail(error),
                },
                State::Serving(serving) => {
                    if let Some(last) = serving.last.take() {
                        if let AnswerPart::Finished { ending: Ending::Stop, usage } = last
                            && serving.calls
                            && let Some(rest) = self.rest.take()
                        {
                            self.call(rest, usage);
                            continue;
                        }
                        self.state = State::Over;
                        return last;
                    }
                    if serving.at < serving.samples.len() {
                        let end = (serving.at + self.frame).min(serving.samples.len());
                        let written = serving.begun.writer.push(&serving.samples[serving.at..end]);
                        serving.at = end;
                        match written {
                            // The format may need more samples for its next bytes.
                            Ok(bytes) if bytes.is_empty() => continue,
                            Ok(bytes) => return AnswerPart::Audio(bytes),
                            Err(error) => return self.fail(error.into()),
                        }
                    }
                    let event = serving.begun.stream.next().await;
                    if let Some(part) = self.heard(event) {
                        return part;
                    }
                }
                State::Over => return std::future::pending().await,
            }
        }
    }

    /// What an event of the engine means for the session.
    fn heard(&mut self, event: Option<Event>) -> Option<AnswerPart> {
        let State::Serving(serving) = &mut self.state else { return None };
        match event {
            Some(Event::Started { id, .. }) => {
                if !self.prepares {
                    self.caller.visit.leads_to(id);
                }
                Some(AnswerPart::Started)
            }
            Some(Event::Text(text)) => {
                serving.calls = text.ends_with(CALL);
                self.written(text)
            }
            Some(Event::Audio(chunk)) => {
                self.caller.spoke(chunk.samples.len(), self.sample_rate);
                (serving.samples, serving.at) = (chunk.samples, 0);
                None
            }
            Some(Event::Word(_)) => None,
            Some(Event::Finished { reason, usage }) => {
                let ending = match reason {
                    FinishReason::Stop | FinishReason::Unspoken => Ending::Stop,
                    FinishReason::Length | FinishReason::Runaway => Ending::Length,
                };
                let media = usage.media;
                let usage = Usage {
                    input: usage.prompt_tokens,
                    cached: usage.cached_tokens,
                    input_audio: media.audio,
                    input_image: media.image + media.video,
                    output_text: usage.text_tokens,
                    output_audio: usage.frames.0,
                };
                let usage = match self.spoken {
                    Some(spoken) => Usage { output_audio: spoken.output_audio, ..usage },
                    None => usage,
                };
                serving.last = Some(AnswerPart::Finished { ending, usage });
                // Text has no sound at its end.
                if self.spoken.is_some() {
                    return None;
                }
                match serving.begun.writer.finish() {
                    Ok(rest) if rest.is_empty() => None,
                    Ok(rest) => Some(AnswerPart::Audio(rest)),
                    Err(error) => Some(self.fail(error.into())),
                }
            }
            Some(Event::Failed(error)) => Some(self.fail(error.into())),
            None => Some(self.fail(ApiError::internal("the answer ended before it was complete"))),
        }
    }

    fn fail(&mut self, error: ApiError) -> AnswerPart {
        self.state = State::Over;
        AnswerPart::Failed { code: error.code.to_owned(), message: error.message }
    }
}

/// Bytes that a request has for itself: its texts, calls and pictures, and sound that no conversation has.
fn own_bytes(job: &Job) -> usize {
    let parts = job.turns.iter().flat_map(|turn| &turn.parts);
    let bytes = parts.map(|part| match part {
        PromptPart::Text(text) => text.len(),
        PromptPart::Image { url, .. } => url.len(),
        PromptPart::Audio(file) if Arc::strong_count(file) == 1 => file.len(),
        PromptPart::Audio(_) => 0,
    });
    let calls = job.turns.iter().flat_map(|turn| &turn.calls);
    bytes.sum::<usize>() + calls.map(|call| call.name.len() + call.arguments.len()).sum::<usize>()
}

/// The part of the budget is held until the engine has taken the request over.
async fn begin(app: Arc<App>, caller: Caller, (job, _held): (Job, Held), counts: bool) -> Result<Begun, ApiError> {
    if counts {
        caller.begin()?;
    }
    let format = match job.format {
        WireFormat::Pcm => AudioFormat::Pcm,
        WireFormat::Mu => AudioFormat::G711(Law::Mu),
        WireFormat::A => AudioFormat::G711(Law::A),
    };
    let sound = Sound { speed: job.speed, sample_rate: Some(job.format.rate()), ..format.into() };
    let writer = app.writer(sound)?;
    let options = RequestOptions {
        tenant: caller.tenant,
        slo: match (job.prepares, job.speaks) {
            (true, _) => Slo::Background,
            (false, true) => Slo::Realtime(app.limits().first_audio_deadline),
            (false, false) => Slo::BestEffort,
        },
        ..RequestOptions::default()
    };
    let (messages, media, files) = prompt(&app, &job).await?;
    let request = GenerateRequest {
        messages,
        media,
        tools: job.tools.to_vec(),
        until_call: job.speaks && !job.tools.is_empty(),
        output: if job.speaks { Output::TextAndAudio } else { Output::Text },
        voice: job.voice,
        text: SamplingOverrides { temperature: job.temperature, ..SamplingOverrides::default() },
        speech: SamplingOverrides::default(),
        max_text_tokens: job.max_tokens,
        max_frames: job.max_tokens.map(Frames),
        ignore_eos: false,
        seed: Some(job.seed),
        options,
    };
    let stream = app.service.submit(request).await?;
    drop(files);
    Ok(Begun { stream, writer })
}

/// The conversation as chat has it, and the parts of the budget of the files in it. Pictures are read by the rules that
/// those of chat have.
async fn prompt(app: &App, job: &Job) -> Result<(Vec<ChatMessage>, Vec<MediaSource>, Vec<Arc<Held>>), ApiError> {
    let parts = || job.turns.iter().flat_map(|turn| &turn.parts);
    let pictures: Vec<SourceRef<'_>> = parts().filter_map(picture).collect();
    let most = Counts { files: app.media.max_files, frames: app.media.max_frames };
    chat_parts::check(&pictures, app.service.info(), &most)?;
    let Loaded { sources, held } = media::load(app, &pictures).await?;
    let mut pictures = sources.into_iter();
    let media = parts().filter_map(|part| match part {
        PromptPart::Text(_) => None,
        PromptPart::Audio(file) => Some(MediaSource::Speech(Arc::clone(file))),
        // There are as many as were asked for.
        PromptPart::Image { .. } => pictures.next(),
    });
    let media = media.collect();
    let messages = job.turns.iter().map(|turn| {
        let places: Vec<Part> = turn.parts.iter().map(place).collect();
        let content = match places.iter().all(|place| matches!(place, Part::Text(_))) {
            true => Content::Text(Content::Parts(places).texts().collect()),
            false => Content::Parts(places),
        };
        let call = |call: &Call| ToolCall { name: call.name.clone(), arguments: call.arguments.clone() };
        ChatMessage { role: turn.role.to_owned(), content, calls: turn.calls.iter().map(call).collect() }
    });
    Ok((messages.collect(), media, held))
}

fn picture(part: &PromptPart) -> Option<SourceRef<'_>> {
    let PromptPart::Image { url, detail } = part else { return None };
    let detail = match detail {
        Seen::Auto => Detail::Auto,
        Seen::Low => Detail::Low,
        Seen::High => Detail::High,
    };
    Some(SourceRef { param: "item.content.image_url".to_owned(), what: What::Image(url, detail) })
}

fn place(part: &PromptPart) -> Part {
    match part {
        PromptPart::Text(text) => Part::Text(text.clone()),
        PromptPart::Audio(_) => Part::Audio,
        PromptPart::Image { .. } => Part::Image,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_request_begins_whether_or_not_anybody_asks_for_its_answer_and_ends_with_it() {
        let (reaches, reached) = oneshot::channel();
        let (holds, held) = oneshot::channel::<()>();
        let beginning = Beginning::new(async move {
            let _holds = holds;
            reaches.send(()).unwrap();
            std::future::pending::<Result<Begun, ApiError>>().await
        });
        reached.await.unwrap();
        drop(beginning);
        assert!(held.await.is_err(), "what it held is free");
    }

    #[tokio::test]
    async fn a_request_that_meets_a_bug_is_an_error() {
        async fn bug() -> Result<Begun, ApiError> {
            panic!("a bug, as the test wants it")
        }
        let mut beginning = Beginning::new(bug());
        let error = beginning.outcome().await.err().unwrap();
        assert_eq!(error, ApiError::internal("the request was not begun"));
    }
}
