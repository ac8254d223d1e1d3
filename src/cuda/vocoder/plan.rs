//! Divides the work of a step into launches: sequences with about the same number of frames share one.

use super::Limits;

/// One launch: every sequence advances by up to `chunk` frames.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Launch {
    /// Frames that the graph is made for.
    pub chunk: usize,
    pub pieces: Vec<Piece>,
}

/// A sequence's part of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Index of the job.
    pub job: usize,
    /// Its first frame, counted from the job's first one.
    pub first: usize,
    pub frames: usize,
}

/// Batch sizes of the graphs: a launch takes the next larger one and fills it up with padding.
pub(super) fn batches(limits: &Limits, chunk: usize) -> Vec<usize> {
    let most = limits.batch.min(limits.frames / chunk).max(1);
    let steps = (0..).flat_map(|power: u32| [2usize.pow(power), 3 * 2usize.pow(power) / 2]);
    let mut sizes: Vec<usize> = steps.take_while(|size| *size < most).chain([most]).collect();
    sizes.dedup();
    sizes
}

/// Launches, in order, for jobs of so many frames each. The pieces of a job are in different launches.
pub(super) fn plan(jobs: &[usize], limits: &Limits) -> Vec<Launch> {
    let most = limits.chunk();
    let rounds = jobs.iter().map(|frames| frames.div_ceil(most)).max().unwrap_or(0);
    let mut launches = Vec::new();
    for round in 0..rounds {
        let pieces = jobs.iter().enumerate().filter_map(|(job, frames)| {
            let first = round * most;
            let frames = frames.saturating_sub(first).min(most);
            (frames > 0).then_some(Piece { job, first, frames })
        });
        let pieces: Vec<Piece> = pieces.collect();
        let mut from = 0;
        for chunk in &limits.chunks {
            let fitting = pieces.iter().copied().filter(|piece| piece.frames > from && piece.frames <= *chunk);
            let fitting: Vec<Piece> = fitting.collect();
            let rows = limits.batch.min(limits.frames / chunk).max(1);
            launches.extend(fitting.chunks(rows).map(|pieces| Launch { chunk: *chunk, pieces: pieces.to_vec() }));
            from = *chunk;
        }
    }
    launches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(batch: usize, frames: usize) -> Limits {
        Limits { sequences: 100, contexts: 1, batch, frames, chunks: vec![1, 2, 4, 8] }
    }

    #[test]
    fn rows_of_about_the_same_length_go_together() {
        let launches = plan(&[1, 8, 3, 1, 4], &limits(64, 256));
        let seen: Vec<_> =
            launches.iter().map(|l| (l.chunk, l.pieces.iter().map(|p| p.job).collect::<Vec<_>>())).collect();
        assert_eq!(seen, [(1, vec![0, 3]), (4, vec![2, 4]), (8, vec![1])]);
    }

    #[test]
    fn long_jobs_become_pieces_in_order_and_large_batches_several_launches() {
        let launches = plan(&[19, 0], &limits(64, 256));
        let pieces: Vec<_> = launches.iter().flat_map(|l| &l.pieces).map(|p| (p.first, p.frames)).collect();
        assert_eq!(pieces, [(0, 8), (8, 8), (16, 3)]);
        let sizes: Vec<_> = plan(&[2; 10], &limits(64, 8)).iter().map(|l| l.pieces.len()).collect();
        assert_eq!(sizes, [4, 4, 2]);
    }

    #[test]
    fn every_launch_has_a_graph() {
        assert_eq!(batches(&limits(64, 256), 1), [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]);
        assert_eq!(batches(&limits(64, 256), 8).last(), Some(&32));
        assert_eq!(batches(&limits(1, 256), 1), [1]);
        assert_eq!(batches(&limits(5, 4), 8), [1]);
    }
}
