//! Events of a realtime session, one a line: each is followed or refused with words, and what is begun comes to its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_realtime::{Abilities, AnswerPart, Effect, Limits, Opening, Session};
use std::sync::Arc;

fn opening() -> Opening {
    let abilities = Abilities {
        model: "m".to_owned(),
        hears: true,
        sees: true,
        calls: true,
        default_voice: None,
        frame_ms: 80.0,
        is_model: Arc::new(|_| true),
        find_voice: Arc::new(|_| Ok(None)),
    };
    let limits = Limits {
        items: 16,
        bytes: 1 << 20,
        audio_ms: 2_000,
        instruction_chars: 100,
        item_chars: 100,
        parts: 4,
        media: 2,
        media_ms: 4_000,
        jobs: 3,
        window_ms: 200,
    };
    Opening { id: "sess_1".to_owned(), seed: 1, expires_at: 1, abilities, limits, plays: false }
}

fuzz_target!(|text: &str| {
    let (mut session, _) = Session::new(opening());
    for line in text.lines() {
        let Ok(event) = serde_json::from_str(line) else { continue };
        let mut effects = session.client_event(event);
        while session.is_behind() {
            effects.extend(session.go_on());
        }
        for effect in effects {
            if let Effect::Begin(job) = effect {
                session.answer(job.id, AnswerPart::Started);
                session.answer(job.id, AnswerPart::Text("a".to_owned()));
                // What a model writes may be anything, and follows from what it is told.
                for piece in text.split_inclusive('>') {
                    session.answer(job.id, AnswerPart::Text(piece.to_owned()));
                }
                session.answer(job.id, AnswerPart::Audio(vec![0; 480]));
                session.answer(job.id, AnswerPart::Failed { code: "c".to_owned(), message: "m".to_owned() });
            }
        }
        assert!(session.bytes() < 2 << 20);
    }
});
