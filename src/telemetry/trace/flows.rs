//! The arrows of a trace: what had to happen before what.
//!
//! | arrow | from | over | to |
//! | --- | --- | --- | --- |
//! | `token` | the step whose return let the scheduler plan | the sampler, the scheduler | the launch of the planned step |
//! | `payload` | the step that made it | packager, both connectors | the next stage's launch thread, or the client's edge |

use super::layout::{About, Slice, to_client};
use omni_core::ids::{Generation, PayloadKind, Replica, RequestId, Seq, StepId};
use std::collections::HashMap;

/// An arrow over two slices or more, in the order of time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arrow {
    pub name: &'static str,
    /// Places in the list of slices.
    pub over: Vec<usize>,
}

type Step = (Replica, Generation, StepId);
type Piece = (RequestId, PayloadKind, Seq);

/// Where the parts of arrows are.
#[derive(Default)]
struct Places {
    ran: HashMap<Step, usize>,
    sampled: HashMap<Step, usize>,
    returned: HashMap<Step, usize>,
    launched: HashMap<Step, usize>,
    packed: HashMap<Piece, (usize, Option<Step>)>,
    put: HashMap<Piece, usize>,
    took: HashMap<Piece, usize>,
    fed: HashMap<Piece, usize>,
}

/// All arrows that have both their ends within the trace.
pub(super) fn arrows(slices: &[Slice]) -> Vec<Arrow> {
    let places = Places::of(slices);
    let mut arrows: Vec<Arrow> = slices.iter().filter_map(|slice| places.token(slice)).collect();
    let mut pieces: Vec<_> = places.packed.iter().collect();
    pieces.sort_by_key(|(piece, (at, _))| (*at, **piece));
    arrows.extend(pieces.into_iter().filter_map(|(piece, (at, step))| places.payload(*piece, *at, *step)));
    arrows
}

impl Places {
    fn of(slices: &[Slice]) -> Places {
        let mut places = Places::default();
        for (at, slice) in slices.iter().enumerate() {
            let step = |step| (slice.place, slice.generation, step);
            match slice.about {
                About::Ran(of) => places.ran.insert(step(of), at),
                About::Sampled(of) => places.sampled.insert(step(of), at),
                About::Returned(of) => places.returned.insert(step(of), at),
                About::Launched(of) => places.launched.insert(step(of), at),
                About::Packed(chunk) => {
                    places.packed.insert(chunk.piece(), (at, chunk.step.map(step)));
                    None
                }
                About::Put(chunk) => places.put.insert(chunk.piece(), at),
                About::Took(chunk) => places.took.insert(chunk.piece(), at),
                About::InputPushed(chunk) => places.fed.insert(chunk.piece(), at),
                About::Planned { .. } | About::Nothing => None,
            };
        }
        places
    }

    /// The arrow to the launch of a step that was planned when another one returned.
    fn token(&self, slice: &Slice) -> Option<Arrow> {
        let About::Planned { step, after: Some(after) } = slice.about else { return None };
        let (of, to) = ((slice.place, slice.generation, after), (slice.place, slice.generation, step));
        let over = [&self.sampled, &self.returned].into_iter().filter_map(|place| place.get(&of));
        let over = self.ran.get(&of).into_iter().chain(over).copied();
        Arrow::over("token", over, *self.launched.get(&to)?)
    }

    fn payload(&self, piece: Piece, packed: usize, step: Option<Step>) -> Option<Arrow> {
        let ran = step.and_then(|step| self.ran.get(&step)).copied();
        let (put, took, fed) = (self.put.get(&piece), self.took.get(&piece), self.fed.get(&piece));
        let beyond = if to_client(piece.1) { [None; 2] } else { [took, fed] };
        let mut over =
            ran.into_iter().chain([packed]).chain(put.into_iter().chain(beyond.into_iter().flatten()).copied());
        let last = over.by_ref().collect::<Vec<_>>();
        let (to, over) = last.split_last()?;
        Arrow::over("payload", over.iter().copied(), *to)
    }
}

impl Arrow {
    fn over(name: &'static str, over: impl Iterator<Item = usize>, to: usize) -> Option<Arrow> {
        let over: Vec<_> = over.chain([to]).collect();
        (over.len() > 1).then_some(Arrow { name, over })
    }
}
