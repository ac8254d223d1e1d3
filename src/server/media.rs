//! Sounds, pictures and videos of a chat request: from where it says that they are to bytes, by the rules that recordings
//! of voices have, and with the budget of requests. The engine decodes them.

use super::budget::Held;
use super::chat_parts::{SourceRef, What};
use super::error::ApiError;
use super::reference::References;
use super::state::App;
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt, stream};
use omni_engine::{MediaSource, SubmitError};
use std::sync::Arc;

/// Files of one request that are fetched at the same time.
const AT_ONCE: usize = 4;

/// The media of one request.
#[derive(Default)]
pub(super) struct Loaded {
    /// In the order of the request.
    pub sources: Vec<MediaSource>,
    /// Their parts of the budget, to be held until the engine has taken them over.
    pub held: Vec<Arc<Held>>,
}

/// Reads what a request names. Nothing happens for a request that names nothing.
///
/// # Errors
/// 400 with the part at fault; 503 where the budget has no room.
pub(super) async fn load(app: &App, refs: &[SourceRef<'_>]) -> Result<Loaded, ApiError> {
    let mut loaded = Loaded::default();
    if refs.is_empty() {
        return Ok(loaded);
    }
    let mut wanted = Vec::new();
    for SourceRef { param, what } in refs {
        match what {
            What::Audio(url) | What::Image(url, _) | What::Video { url, .. } => {
                wanted.push(read(app, param.clone(), url));
            }
            What::Frames { urls, .. } => {
                let of_list = urls.iter().enumerate();
                wanted.extend(of_list.map(|(frame, url)| read(app, of_frame(param, Some(frame)), url)));
            }
        }
    }
    let files: Vec<File> = stream::iter(wanted).buffered(AT_ONCE).try_collect().await?;
    let mut files = files.into_iter().map(|(file, held)| {
        loaded.held.extend(held);
        file
    });
    for SourceRef { what, .. } in refs {
        // There are as many files as were asked for.
        let count = if let What::Frames { urls, .. } = what { urls.len() } else { 1 };
        let mut pictures: Vec<Arc<[u8]>> = files.by_ref().take(count).collect();
        let Some(file) = pictures.first().map(Arc::clone) else { continue };
        loaded.sources.push(match what {
            What::Audio(_) => MediaSource::Audio(file),
            What::Image(_, detail) => MediaSource::Image { file, detail: *detail },
            What::Video { hear, frames_per_second, .. } => {
                MediaSource::Video { file, hear: *hear, frames_per_second: *frames_per_second }
            }
            What::Frames { frames_per_second, .. } => {
                MediaSource::Frames { pictures: std::mem::take(&mut pictures), frames_per_second: *frames_per_second }
            }
        });
    }
    drop(files);
    Ok(loaded)
}

/// A file, and its part of the budget.
type File = (Arc<[u8]>, Option<Arc<Held>>);

/// Reads one file. Errors name `param`.
fn read<'a>(app: &'a App, param: String, url: &'a str) -> BoxFuture<'a, Result<File, ApiError>> {
    Box::pin(async move {
        let mut references = References::new(&app.media_files, &app.budget).named(&param);
        let bytes = references.load(url).await?;
        Ok((bytes, references.held()))
    })
}

/// A part of a request, or a frame of the list that it has.
fn of_frame(param: &str, frame: Option<usize>) -> String {
    frame.map_or_else(|| param.to_owned(), |frame| format!("{param}.video[{frame}]"))
}

/// What the engine says of a request, with the part at fault.
pub(super) fn told(refs: &[SourceRef<'_>], error: SubmitError) -> ApiError {
    match error {
        SubmitError::Medium { index, frame, message } => match refs.get(index) {
            Some(SourceRef { param, .. }) => {
                let param = of_frame(param, frame);
                let message = format!("{param}: {message}");
                ApiError::invalid(param, message)
            }
            None => ApiError::invalid("messages", message),
        },
        error => error.into(),
    }
}
