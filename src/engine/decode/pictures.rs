//! The pictures of one request, decoded side by side.
//!
//! What stands beside each other and is resized alike is cut into groups; each group is one job. A worker starts once
//! for a group, and answers picture by picture: so its memory is that of one, and where it ends too early the server
//! knows which one it had in hand.

use super::job::{Answer, Job, MOST_PICTURES, Pictures, resized};
use super::media::{fits, here, most_bytes};
use super::pool::Pool;
use super::worker::Expected;
use super::{DecodeError, Decoders, Place, counted, nonsense, refused};
use omni_media::MediaLimits;
use omni_media::picture::Picture;
use omni_media::size::SizeRule;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Bytes of files of one group, if it has more than one: large ones take time, of which a worker has only so much.
const GROUP_BYTES: usize = 4 << 20;

/// A picture of a request: its file, and which size it gets.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// An encoded picture; of an animation the first is seen.
    pub file: &'a [u8],
    /// The size.
    pub rule: SizeRule,
}

/// Told the pixels of each picture that has come, and 0 before a group begins; whether another is wanted.
pub type Wanted<'a> = &'a (dyn Fn(usize) -> bool + Sync);

impl Decoders {
    /// Threads that may decode pictures of one request at once.
    pub(crate) fn side_by_side(&self) -> usize {
        self.helpers.seats()
    }

    /// Decodes pictures and resizes each by its rule: those of [`Sight`]s in their order, up to the first that cannot be
    /// decoded, with its error as the last result, or to where no further one was `wanted`. Blocks; not for an async
    /// thread.
    pub fn pictures(
        &self,
        sights: &[Sight<'_>],
        limits: &MediaLimits,
        wanted: Wanted<'_>,
    ) -> Vec<Result<Picture, DecodeError>> {
        let pool = match &self.place {
            Place::Thread => None,
            // Started here once, and not by each of the threads.
            Place::Process(started) => match started.get() {
                Ok(pool) => Some(pool),
                Err(error) => return sights.first().map(|_| counted("picture", Err(error))).into_iter().collect(),
            },
        };
        // Without workers nothing is gained by fewer jobs.
        let most = pool.map_or(1, |_| sights.len().div_ceil(self.side_by_side()).clamp(1, MOST_PICTURES));
        let groups = grouped(sights, most);
        let found = self.helpers.each(groups.len(), |number| {
            let group = &sights[groups[number].clone()];
            let (found, more) = if wanted(0) { decode(pool, group, limits, wanted) } else { (Vec::new(), false) };
            ((found, more), more)
        });
        let mut results = Vec::with_capacity(sights.len());
        for (group, more) in found {
            results.extend(group);
            if !more {
                break;
            }
        }
        results
    }

    /// Gives the frames of a film their size.
    ///
    /// # Errors
    /// [`DecodeError::Refused`] for a strip.
    pub(crate) fn resize_film(&self, frames: Vec<Picture>, rule: &SizeRule) -> Result<Vec<Picture>, DecodeError> {
        // Each is gone when it has its size, so that no two sizes of all of them are in memory.
        let frames: Vec<Mutex<Vec<Picture>>> = frames.into_iter().map(|frame| Mutex::new(vec![frame])).collect();
        let resized = self.helpers.each(frames.len(), |number| {
            let frame = std::mem::take(&mut *frames[number].lock().unwrap_or_else(PoisonError::into_inner));
            let resized = resized(frame, rule);
            if let Ok(resized) = &resized {
                resized.iter().for_each(|frame| _ = frame.hash());
            }
            let more = resized.is_ok();
            (resized, more)
        });
        let frames: Result<Vec<Vec<Picture>>, _> = resized.into_iter().collect();
        frames.map(|frames| frames.into_iter().flatten().collect()).map_err(refused)
    }
}

/// Pictures that follow each other and are resized alike, at most so many together.
fn grouped(sights: &[Sight<'_>], most: usize) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut bytes = 0usize;
    for (number, sight) in sights.iter().enumerate() {
        bytes = bytes.saturating_add(sight.file.len());
        match groups.last_mut() {
            Some(group) if group.len() < most && bytes <= GROUP_BYTES && sights[group.start].rule == sight.rule => {
                group.end += 1;
            }
            _ => {
                groups.push(number..number + 1);
                bytes = sight.file.len();
            }
        }
    }
    groups
}

/// Decodes a group; the results as those of [`Decoders::pictures`], and whether more pictures may follow them.
fn decode(
    pool: Option<&Pool>,
    group: &[Sight<'_>],
    limits: &MediaLimits,
    wanted: Wanted<'_>,
) -> (Vec<Result<Picture, DecodeError>>, bool) {
    let Some(Sight { rule, .. }) = group.first() else { return (Vec::new(), true) };
    let files: Vec<&[u8]> = group.iter().map(|sight| sight.file).collect();
    let job = Job::pictures(limits, rule, files.iter().map(|file| file.len()).collect());
    let mut results: Vec<Result<Picture, DecodeError>> = Vec::with_capacity(group.len());
    let mut more = true;
    let mut take = |answer| {
        let picture = picture(answer, rule);
        // Here, beside those that other threads have in hand: a frame of 480 lines takes a millisecond.
        if let Ok(picture) = &picture {
            picture.hash();
        }
        more = picture.as_ref().is_ok_and(|picture| wanted(picture.size().height * picture.size().width));
        results.push(counted("picture", picture));
        more
    };
    let ended = match (pool, files.as_slice()) {
        (Some(pool), files) => {
            pool.run(&job, files, Expected { answers: files.len(), bytes: most_bytes(rule) }, &mut take)
        }
        (None, [file]) => here(&job, file).map(|answer| _ = take(answer)),
        (None, _) => Err(nonsense()),
    };
    if let Err(error) = ended {
        results.push(counted("picture", Err(error)));
        more = false;
    }
    (results, more)
}

/// The one picture of an answer.
fn picture(answer: Answer, rule: &SizeRule) -> Result<Picture, DecodeError> {
    let Answer::Pictures(Pictures { mut frames, .. }) = answer else { return Err(nonsense()) };
    match (frames.pop(), frames.is_empty()) {
        (Some(picture), true) if fits(&picture, rule) => Ok(picture),
        _ => Err(nonsense()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_neighbours_of_one_rule_within_their_limits() {
        let rule = |factor| SizeRule { factor, min_pixels: 1, max_pixels: 1_000 };
        let (small, large) = (vec![0; 100], vec![0; GROUP_BYTES]);
        let sight = |file, factor| Sight { file, rule: rule(factor) };
        let (a, b) = (sight(&small, 2), sight(&small, 4));
        assert_eq!(grouped(&[a, a, b, a, a, a], 2), [0..2, 2..3, 3..5, 5..6]);
        assert_eq!(grouped(&[a; 5], 8).first(), Some(&(0..5)));
        let huge = sight(&large, 2);
        assert_eq!(grouped(&[a, huge, a, a, huge], 8), [0..1, 1..2, 2..4, 4..5]);
        assert!(grouped(&[], 8).is_empty());
    }
}
