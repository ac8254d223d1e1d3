//! A step of the thinker on its way to the device.

use super::handed::Handed;
use super::left::Left;
use super::sequence::{Plan, Target};
use super::stage::CudaThinker;
use super::steps::{ROWS_AT, Steps};
use super::table::{SEEN, TokenHead, TokenRow};
use crate::copies::Memory;
use crate::talker::ring::Lease;
use crate::talker::table::NONE;
use crate::upload::Upload;
use crate::weights::with_bytes;
use crate::{CudaError, Graph};
use omni_model::stages::media::MediaRow;

/// Single tokens that join a pass over prompts: its attention takes those of different sequences one after the other.
const JOINING: usize = 4;

impl CudaThinker {
    /// Queues what a step needs; returns the memory that the device uses.
    pub(super) fn queue(&mut self, plan: &Plan) -> Result<(Lease, Handed), CudaError> {
        let (steps, stream) = (&self.steps, &self.stream);
        if let Some(host) = &mut self.host {
            host.restore(stream, steps, &self.prompts.to_restore())?;
        }
        let passes: Vec<&[TokenRow]> = plan.prompts.chunks(steps.prompt_embeddings()).collect();
        let marked: Vec<&[TokenRow]> = plan.marked.chunks(steps.prompt_embeddings()).collect();
        let uploads: usize = self.uploads.iter().map(Upload::room).sum();
        let table = ROWS_AT + steps.prompt_embeddings().max(steps.batch()) * size_of::<TokenRow>();
        let sources: Vec<u8> = plan.handed.iter().flat_map(|source| source.to_le_bytes()).collect();
        let media = plan.media.len() * self.net.media_width() * size_of::<f32>();
        // Each pass may be followed by what samples some of its rows.
        let tables = (marked.len() + 2 * (passes.len() + 1)) * table;
        let lease = self.ring.lease(uploads + tables + media + 2 * sources.len().next_multiple_of(16))?;
        lease.begin.record(stream)?;
        let memory = (!sources.is_empty()).then(|| self.arena.take(plan.handed.len())).transpose()?;
        let handed = match &steps.hidden {
            Some(hidden) => hidden.address(),
            None => memory.as_ref().map_or(0, Memory::address),
        };
        let head = TokenHead { out: lease.out.device_at(0), handed };
        let mut at = 0;
        for upload in self.uploads.drain(..) {
            lease.input.set(at, &upload.bytes);
            let (from, bytes) = (&lease.input, upload.bytes.len());
            match upload.to {
                Target::Params => steps.params.upload_bytes_async(stream, upload.at, from, at, bytes)?,
                Target::Counts => steps.counts.upload_bytes_async(stream, upload.at, from, at, bytes)?,
                Target::PageTable => {
                    steps.cache.tables_buffer().upload_bytes_async(stream, upload.at, from, at, bytes)?;
                }
            }
            at += upload.room();
        }
        let tail = |samples: &[(usize, TokenRow)], done: usize, at: &mut usize| -> Result<(), CudaError> {
            let Some((bucket, graph)) = steps.tail_graph(samples.len()).filter(|_| !samples.is_empty()) else {
                return Ok(());
            };
            let rows: Vec<_> = samples.iter().map(|(of, row)| TokenRow { of: *of as u32, ..*row }).collect();
            let table = Steps::table(&rows, bucket, TokenHead { out: lease.out.device_at(2 * done), handed });
            lease.input.set(*at, &table);
            steps.sampled.upload_bytes_async(stream, 0, &lease.input, *at, table.len())?;
            *at += table.len().next_multiple_of(16);
            graph.launch(stream)
        };
        let send = |rows: &[TokenRow], bucket: usize, head: TokenHead, at: &mut usize| -> Result<(), CudaError> {
            let table = Steps::table(rows, bucket, head);
            lease.input.set(*at, &table);
            steps.inbox.upload_bytes_async(stream, 0, &lease.input, *at, table.len())?;
            *at += table.len().next_multiple_of(16);
            Ok(())
        };
        for rows in marked {
            send(rows, rows.len(), head, &mut at)?;
            steps.mark(&self.net, stream, rows.len())?;
        }
        let (mut first, mut media, mut samples, mut done) = (0, plan.media.as_slice(), plan.samples.as_slice(), 0);
        let mut tokens = plan.tokens.as_slice();
        for (number, pass) in passes.iter().enumerate() {
            let end = first + pass.len();
            let (own, sampled);
            (own, media) = media.split_at(media.partition_point(|(place, _)| *place < end));
            (sampled, samples) = samples.split_at(samples.partition_point(|(place, _)| *place < end));
            let mut rows =
                if own.is_empty() { pass.to_vec() } else { self.send_media(pass, first, own, &lease, &mut at)? };
            let mut sampled: Vec<_> = sampled.iter().map(|(place, row)| (place - first, *row)).collect();
            let graph = steps.prompt_graph(rows.len(), !own.is_empty());
            let fits = |(bucket, _): (usize, &Graph)| rows.len() + tokens.len() <= bucket && tokens.len() <= JOINING;
            if number + 1 == passes.len() && graph.is_some_and(fits) {
                // They take rows that would be padding, and the weights are read once.
                sampled.extend((rows.len()..).zip(tokens.iter().copied()));
                rows.extend(std::mem::take(&mut tokens));
            }
            if let Some((bucket, graph)) = graph {
                send(&rows, bucket, head, &mut at)?;
                graph.launch(stream)?;
            }
            tail(&sampled, done, &mut at)?;
            done += sampled.len();
            first = end;
        }
        if let Some((bucket, graph)) = steps.token_graph(tokens.len()).filter(|_| !tokens.is_empty()) {
            send(tokens, bucket, TokenHead { out: lease.out.device_at(2 * done), handed }, &mut at)?;
            // What it hands on, a talker takes meanwhile, whose kernels are small and many.
            let alone = bucket == 1 && plan.handed.is_empty();
            if !(alone && steps.launch_alone(stream)?) {
                graph.launch(stream)?;
            }
        }
        let mut handed = Handed::Nothing;
        if let Some(memory) = memory {
            let count = plan.handed.len();
            // Read where it is: a word for each block, once.
            let mut hand = |table: u64, sources: &[u8]| -> Result<(), CudaError> {
                lease.input.set(at, sources);
                let places = (lease.input.device_at(at), memory.address());
                at += sources.len().next_multiple_of(16);
                steps.hand_rows(&self.net, stream, table, places, count)
            };
            hand(self.net.table.address(), &sources)?;
            if let (Some(hidden), false) = (&steps.hidden, plan.states.is_empty()) {
                let mut sources = vec![NONE; count];
                plan.states.iter().for_each(|(place, row)| sources[*place] = *row);
                let sources: Vec<u8> = sources.iter().flat_map(|source| source.to_le_bytes()).collect();
                hand(hidden.address(), &sources)?;
            }
            handed = if self.embeddings_in_step {
                Handed::Here { bytes: self.arena.copy_in_step(stream, &memory)?, _memory: memory }
            } else {
                Handed::There(self.arena.written(stream, memory, count)?)
            };
        }
        lease.end.record(stream)?;
        Ok((lease, handed))
    }

    /// Queues the copy of the embeddings of media that the rows of a pass take, whose first one has the number `first`.
    /// Returns the rows with the places of theirs.
    fn send_media(
        &self,
        pass: &[TokenRow],
        first: usize,
        media: &[(usize, MediaRow)],
        lease: &Lease,
        at: &mut usize,
    ) -> Result<Vec<TokenRow>, CudaError> {
        let (width, hidden) = (self.net.media_width(), self.net.config.hidden_size);
        let (stride, mut rows) = (width * size_of::<f32>(), pass.to_vec());
        let mut there = Left::default();
        let mut here = false;
        for (number, (place, embedding)) in media.iter().enumerate() {
            let row = &mut rows[place - first];
            row.media = number as u32;
            row.flags |= if embedding.width() > hidden { SEEN } else { 0 };
            match embedding {
                MediaRow::There(embedding) => there.add(embedding, number),
                MediaRow::Here(embedding) => {
                    here = true;
                    let set = |bytes: &[u8]| lease.input.set(*at + number * stride, bytes);
                    if with_bytes(embedding, set).is_none() {
                        unreachable!("`PromptMedia` keeps embeddings of f32 on the host");
                    }
                }
            }
        }
        let bytes = media.len() * stride;
        if here {
            self.steps.media.upload_bytes_async(&self.stream, 0, &lease.input, *at, bytes)?;
        }
        there.copy_to(&self.stream, &self.steps.media, stride)?;
        *at += bytes.next_multiple_of(16);
        Ok(rows)
    }
}
