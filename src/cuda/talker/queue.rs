//! Queues a planned step: copies and graphs on the stream.

use super::arrivals::Arrival;
use super::frame::head;
use super::plan::Step;
use super::ring::Lease;
use super::stage::{CudaTalker, Target};
use super::table::{NONE, NewPage, PromptEmbedding, REFERENCE_FRAME, Record, StepSequence};
use crate::CudaError;

impl CudaTalker {
    /// Queues everything that a step needs; returns the memory that the device uses.
    pub(super) fn queue(&mut self, step: &mut Step) -> Result<Lease, CudaError> {
        let (frame, prompt) = (self.frames.frame_layout, self.frames.prompt_layout);
        let passes: Vec<&[PromptEmbedding]> = step.prompts.chunks(self.frames.prompt_embeddings().max(1)).collect();
        let uploads: usize = self.uploads.iter().map(|upload| upload.bytes.len().next_multiple_of(16)).sum();
        let bytes = |arrival: &Arrival| arrival.bytes_in_step().next_multiple_of(16) + arrival.bytes_of_places();
        let arrivals = self.arrivals.iter().map(bytes).sum::<usize>().next_multiple_of(16);
        let lease = self.ring.lease(frame.bytes + passes.len() * prompt.bytes + uploads + arrivals)?;
        let stream = &self.stream;
        lease.begin.record(stream)?;
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
            at += bytes.next_multiple_of(16);
        }
        if !self.arrivals.is_empty() {
            let arrivals = std::mem::take(&mut self.arrivals);
            self.project(&lease, &mut at, &arrivals)?;
            step.arrivals = arrivals;
        }
        let stream = &self.stream;
        for sequences in passes {
            let Some((bucket, graph)) = self.frames.prompt_graph(sequences.len()) else { continue };
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
        if let Some((bucket, graph)) = self.frames.frame_graph(step.frames.len()).filter(|_| !step.frames.is_empty()) {
            // Forced codes are at the end: most steps have none.
            let mut table = vec![0u8; frame.codes + step.forced.len() * 4];
            put(
                &mut table,
                0,
                head(lease.out.device_at(0), lease.out.device_at(self.times_at), step.new_pages.len()).bytes(),
            );
            for i in 0..bucket {
                let sequence = step.frames.get(i).copied().unwrap_or(StepSequence::PADDING);
                put(&mut table, frame.rows + i * size_of::<StepSequence>(), sequence.bytes());
            }
            for (i, page) in step.new_pages.iter().enumerate() {
                put(&mut table, frame.pages + i * size_of::<NewPage>(), page.bytes());
            }
            for (i, code) in step.forced.iter().enumerate() {
                put(&mut table, frame.codes + i * 4, &code.to_le_bytes());
            }
            lease.input.set(at, &table);
            self.frames.inbox.upload_async(stream, 0, &lease.input, at, table.len())?;
            graph.launch(stream)?;
        }
        lease.end.record(stream)?;
        Ok(lease)
    }
}

fn put(table: &mut [u8], at: usize, bytes: &[u8]) {
    table[at..at + bytes.len()].copy_from_slice(bytes);
}
