//! Queues a planned step: copies and graphs on the stream.

use super::arrivals::Arrival;
use super::frame::head;
use super::pending::nearly_at;
use super::plan::Step;
use super::ring::Lease;
use super::stage::{CudaTalker, Target};
use super::table::{NEXT, NONE, NewPage, PromptEmbedding, REFERENCE_FRAME, Record, StepHead, StepSequence};
use crate::CudaError;
use crate::upload::Upload;

/// Sequences that have spoken already whose next positions join a pass over prompts: its attention takes those of
/// different sequences one after the other.
const JOINING: usize = 4;
/// Rows that a pass over prompts takes in the time of fewer: what it waits for is its weights.
const SAME: usize = 64;

impl CudaTalker {
    /// Queues everything that a step needs; returns the memory that the device uses.
    pub(super) fn queue(&mut self, step: &mut Step) -> Result<Lease, CudaError> {
        let (frame, prompt) = (self.frames.frame_layout, self.frames.prompt_layout);
        let joined = self.join(step);
        let passes: Vec<&[PromptEmbedding]> = step.prompts.chunks(self.frames.graphs.most_positions().max(1)).collect();
        let uploads: usize = self.uploads.iter().map(Upload::room).sum();
        let bytes = |arrival: &Arrival| arrival.bytes_in_step().next_multiple_of(16) + arrival.bytes_of_places();
        let arrivals = self.arrivals.iter().map(bytes).sum::<usize>().next_multiple_of(16);
        let lease = self.ring.lease(frame.bytes + passes.len() * prompt.bytes + uploads + arrivals)?;
        let stream = &self.stream;
        lease.begin.record(stream)?;
        // What an earlier frame has left there.
        lease.out.set(self.times_at + nearly_at(self.groups()), &[0]);
        let mut at = 0;
        for upload in self.uploads.drain(..) {
            lease.input.set(at, &upload.bytes);
            let (frames, from, bytes) = (&self.frames, &lease.input, upload.bytes.len());
            match upload.to {
                Target::Params => frames.params.upload_bytes_async(stream, upload.at, from, at, bytes)?,
                Target::XVectors => frames.x_vectors.upload_bytes_async(stream, upload.at, from, at, bytes)?,
                Target::Counts => frames.counts.upload_bytes_async(stream, upload.at, from, at, bytes)?,
                Target::PageTable => {
                    frames.cache.tables_buffer().upload_bytes_async(stream, upload.at, from, at, bytes)?;
                }
            }
            at += upload.room();
        }
        if !self.arrivals.is_empty() {
            let arrivals = std::mem::take(&mut self.arrivals);
            self.project(&lease, &mut at, &arrivals)?;
            step.arrivals = arrivals;
        }
        let stream = &self.stream;
        if !step.frames.is_empty() {
            let head = head(lease.out.device_at(0), lease.out.device_at(self.times_at), step.new_pages.len());
            self.send_frames(&lease, &mut at, step, head)?;
        }
        if joined {
            // For the pages that sequences got: what it writes besides is written again.
            self.frames.begin(&self.net, stream, step.frames.len())?;
        }
        for sequences in passes {
            let Some((bucket, graph)) = self.frames.graphs.prompt(sequences.len()) else { continue };
            // The codes of this pass only, counted from its own beginning.
            let first =
                sequences.iter().find(|sequence| sequence.kind == REFERENCE_FRAME).map_or(0, |sequence| sequence.codes);
            let mut table = vec![0u8; prompt.bytes];
            let mut codes = Vec::new();
            for (i, sequence) in (0..bucket).map(|i| (i, sequences.get(i).copied().unwrap_or(PromptEmbedding::PADDING)))
            {
                let mut sequence = sequence;
                if sequence.kind == REFERENCE_FRAME && sequence.slot != NONE {
                    let groups = self.net.config.num_code_groups;
                    codes.extend_from_slice(&step.codes[sequence.codes as usize..sequence.codes as usize + groups]);
                    sequence.codes -= first;
                }
                put(&mut table, prompt.rows + i * size_of::<PromptEmbedding>(), sequence.bytes());
            }
            for (i, code) in codes.iter().enumerate() {
                put(&mut table, prompt.codes + i * 4, &code.to_le_bytes());
            }
            lease.input.set(at, &table);
            self.frames.prompt_inbox.upload_async(stream, 0, &lease.input, at, table.len())?;
            at += table.len().next_multiple_of(16);
            graph.launch(stream)?;
        }
        let frames = step.frames.len();
        let graph = if joined { self.frames.graphs.tail(frames) } else { self.frames.frame_graph(frames, last(step)) };
        if let Some((_, graph)) = graph.filter(|_| frames > 0) {
            graph.launch(stream)?;
        }
        lease.end.record(stream)?;
        Ok(lease)
    }

    /// Has the last pass over prompts do the layers of the frames too, where that has room for them: the weights are read
    /// once. Whether it does.
    fn join(&self, step: &mut Step) -> bool {
        if step.prompts.is_empty() || step.frames.is_empty() {
            return false;
        }
        let most = self.frames.graphs.most_positions().max(1);
        let first = (step.prompts.len() - 1) / most * most;
        let pass = &step.prompts[first..];
        // A prompt that ends in this pass has its frame's row there.
        let row = |frame: &StepSequence| pass.iter().position(|row| row.last != 0 && row.slot == frame.slot);
        let rows: Vec<Option<usize>> = step.frames.iter().map(row).collect();
        let more = rows.iter().filter(|row| row.is_none()).count();
        let bucket = |rows: usize| self.frames.graphs.prompt(rows).map(|(bucket, _)| bucket);
        let fits = bucket(pass.len() + more).is_some_and(|with| Some(with) == bucket(pass.len()) || with <= SAME);
        if more > JOINING || !fits {
            return false;
        }
        for (frame, row) in step.frames.iter_mut().zip(rows) {
            if let Some(row) = row {
                frame.of = row as u32;
                step.prompts[first + row].last = 0;
                continue;
            }
            frame.of = (step.prompts.len() - first) as u32;
            let StepSequence { slot, position, text, axes, .. } = *frame;
            step.prompts.push(PromptEmbedding { slot, position, text, axes, kind: NEXT, ..PromptEmbedding::PADDING });
        }
        true
    }

    /// Queues the copy of the table of a step's frames.
    fn send_frames(&self, lease: &Lease, at: &mut usize, step: &Step, head: StepHead) -> Result<(), CudaError> {
        let layout = self.frames.frame_layout;
        let Some((bucket, _)) = self.frames.frame_graph(step.frames.len(), last(step)) else { return Ok(()) };
        // Forced codes are at the end: most steps have none.
        let mut table = vec![0u8; layout.codes + step.forced.len() * 4];
        put(&mut table, 0, head.bytes());
        for i in 0..bucket {
            let sequence = step.frames.get(i).copied().unwrap_or(StepSequence::PADDING);
            put(&mut table, layout.rows + i * size_of::<StepSequence>(), sequence.bytes());
        }
        for (i, page) in step.new_pages.iter().enumerate() {
            put(&mut table, layout.pages + i * size_of::<NewPage>(), page.bytes());
        }
        for (i, code) in step.forced.iter().enumerate() {
            put(&mut table, layout.codes + i * 4, &code.to_le_bytes());
        }
        lease.input.set(*at, &table);
        self.frames.inbox.upload_async(&self.stream, 0, &lease.input, *at, table.len())?;
        *at += table.len().next_multiple_of(16);
        Ok(())
    }
}

/// The furthest position of a step's frames.
fn last(step: &Step) -> usize {
    step.frames.iter().map(|frame| frame.position.max(0) as usize).max().unwrap_or(0)
}

fn put(table: &mut [u8], at: usize, bytes: &[u8]) {
    table[at..at + bytes.len()].copy_from_slice(bytes);
}
