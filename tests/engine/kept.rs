//! Conversations turn by turn, text and sound, spoken answers too: what thinker and talker keep of them changes no token
//! and no sample, whichever stage dies, wherever it runs, and whatever else is asked.

use crate::support::engine::{Answer, chat, collect, engine, idle, tiny};
use crate::support::media::Golden;
use omni_actors::config::{Config, Placement, Replicas};
use omni_actors::core::ids::Frames;
use omni_actors::core::ids::StageName::{self, Talker, Thinker};
use omni_actors::engine::{
    ChatMessage, Content, Engine, Event, GenerateRequest, Output, Part, RequestOptions, Service, Tenant, TenantId,
};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use omni_actors::media::Medium;
use std::sync::Arc;
use std::time::Duration;

const TURNS: usize = 4;

/// A conversation, and the media of it so far.
#[derive(Clone, Default)]
struct Conversation {
    messages: Vec<ChatMessage>,
    media: Vec<Arc<Medium>>,
}

impl Conversation {
    /// The user's next turn: text, and in each second one a clip.
    fn asks(&mut self, turn: usize, clip: &Arc<Medium>) {
        let text = format!("This is turn {turn}, and I would like to know more about it than you have said so far.");
        let mut parts = vec![Part::Text(text)];
        if turn % 2 == 1 {
            parts.insert(0, Part::Audio);
            self.media.push(Arc::clone(clip));
        }
        self.messages.push(ChatMessage { role: "user".into(), content: Content::Parts(parts), calls: Vec::new() });
    }

    fn request(&self, output: Output, tenant: u32) -> GenerateRequest {
        GenerateRequest {
            messages: self.messages.clone(),
            max_text_tokens: Some(20),
            max_frames: Some(Frames(8)),
            options: RequestOptions {
                tenant: Tenant { id: TenantId::Key(tenant), ..Tenant::default() },
                ..RequestOptions::default()
            },
            ..chat("", output)
        }
    }
}

/// Talks with an engine; the answers of all turns.
async fn talk(engine: &Engine, clip: &Arc<Medium>, output: Output, tenant: u32) -> Vec<Answer> {
    let mut conversation = Conversation::default();
    let mut answers = Vec::new();
    for turn in 0..TURNS {
        conversation.asks(turn, clip);
        let request = conversation.request(output, tenant);
        let answer = collect(engine.submit_decoded(request, conversation.media.clone()).await.unwrap()).await;
        assert!(answer.end.as_ref().unwrap().is_ok(), "turn {turn}: {:?}", answer.end);
        conversation.messages.push(ChatMessage::text("assistant", answer.text.clone()));
        answers.push(answer);
    }
    answers
}

fn clip() -> Arc<Medium> {
    Arc::clone(&Golden::read("audio_ethan").media[0])
}

fn without(config: &mut Config) {
    keep(config, 0);
}

/// Has thinker and talker keep so many bytes.
fn keep(config: &mut Config, bytes: usize) {
    [Thinker, Talker].iter().for_each(|stage| config.stages[*stage as usize].kept_prompts = bytes);
}

/// Texts, samples and ends; chunks depend on time.
fn same(answers: &[Answer], expected: &[Answer], case: &str) {
    for (turn, (answer, expected)) in answers.iter().zip(expected).enumerate() {
        assert_eq!((&answer.text, &answer.end), (&expected.text, &expected.end), "{case}, turn {turn}");
        assert!(answer.samples == expected.samples, "{case}, turn {turn}: other samples");
    }
    assert_eq!(answers.len(), expected.len(), "{case}");
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_of_a_conversation_say_what_they_say_where_nothing_is_kept() {
    let clip = clip();
    for output in [Output::TextAndAudio, Output::Text] {
        let expected = talk(&engine(&tiny(), without).await, &clip, output, 1).await;
        for (case, chunk, replicas, placement) in [
            ("one thread", 256, 1, Placement::Thread),
            ("pieces of 5", 5, 1, Placement::Thread),
            ("two replicas", 40, 2, Placement::Thread),
            ("a process", 256, 1, Placement::Process),
        ] {
            let engine = engine(&tiny(), |config| {
                for stage in [Thinker, Talker] {
                    let stage = &mut config.stages[stage as usize];
                    (stage.prefill_chunk, stage.replicas, stage.placement) =
                        (Some(chunk), Replicas::Count(replicas), placement);
                }
            })
            .await;
            for tenant in [1, 1, 2] {
                same(&talk(&engine, &clip, output, tenant).await, &expected, case);
            }
            idle(&engine).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_conversations_at_once_share_what_is_kept_and_change_nothing() {
    let clip = clip();
    let expected = talk(&engine(&tiny(), without).await, &clip, Output::TextAndAudio, 1).await;
    // Room for a few blocks only: they take it from each other.
    for kept in [256 << 20, 100 << 10] {
        let engine = engine(&tiny(), |config| keep(config, kept)).await;
        let talks = (0..4).map(|tenant| talk(&engine, &clip, Output::TextAndAudio, tenant / 2));
        for answers in futures::future::join_all(talks).await {
            same(&answers, &expected, &format!("{kept} bytes"));
        }
        idle(&engine).await;
    }
}

/// An engine in which an actor of a stage dies at this occurrence.
async fn dies(stage: StageName, point: FaultPoint, nth: u64) -> Engine {
    engine(&tiny(), |config| {
        config.faults = vec![FaultRule::new(stage, point, FaultKind::Panic).nth(nth)];
        config.supervision.backoff = Duration::from_millis(1);
        config.stages[Thinker as usize].prefill_chunk = Some(24);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_dies_loses_what_is_kept_and_nothing_else() {
    let clip = clip();
    let expected = talk(&engine(&tiny(), without).await, &clip, Output::TextAndAudio, 1).await;
    for (stage, point, occurrences) in [
        // In the second turn, in the middle of what is kept and behind it; in the third, in an answer.
        (Thinker, FaultPoint::Runner, &[25, 27, 30, 33, 60][..]),
        (Thinker, FaultPoint::Sampler, &[26, 28, 40]),
        (Talker, FaultPoint::Runner, &[9, 15, 25]),
    ] {
        for &nth in occurrences {
            let case = format!("{stage} {point:?} at occurrence {nth}");
            let engine = dies(stage, point, nth).await;
            same(&talk(&engine, &clip, Output::TextAndAudio, 1).await, &expected, &case);
            idle(&engine).await;
            assert!(engine.health()[stage].restarts > 0, "{case}: it is not struck");
        }
    }
}

/// Tokens of a prompt that were kept, as the usage tells it, and all of them.
async fn counted(engine: &Engine) -> (u32, u32) {
    let text = "Please tell me all that you know about the sea, the ships, and the people who lived there long ago.";
    let request = GenerateRequest { max_text_tokens: Some(4), ..chat(text, Output::Text) };
    let mut answer = engine.submit(request).await.unwrap();
    loop {
        match answer.next().await.expect("an end") {
            Event::Finished { usage, .. } => return (usage.cached_tokens, usage.prompt_tokens),
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_tells_what_the_attempt_that_answered_found_of_its_prompt() {
    let engine = engine(&tiny(), |config| {
        config.drill.enabled = true;
        config.supervision.backoff = Duration::from_millis(1);
    })
    .await;
    let (first, tokens) = counted(&engine).await;
    // Whole blocks of 16, and never the last position.
    let kept = (tokens - 1) / 16 * 16;
    assert!(first == 0 && kept > 0, "{first} of {tokens}");
    assert_eq!(counted(&engine).await, (kept, tokens));
    // The attempt that had found them dies with them.
    let dies = FaultRule::new(Thinker, FaultPoint::Sampler, FaultKind::Panic);
    engine.faults().add(&[dies]).unwrap();
    assert_eq!(counted(&engine).await, (0, tokens));
    assert_eq!(engine.health()[Thinker].restarts, 1);
    assert_eq!(counted(&engine).await, (kept, tokens));
}
