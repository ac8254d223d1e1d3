//! Launches whose blocks wait for each other: all of them must be on the device at once, so a GPU has one owner of such
//! launches in a process. Processes take turns; where they do not, under MPS, there is none.
//!
//! A stage may also own launches whose blocks take each multiprocessor ([`WholeGpu`]). They neither meet those of the
//! first owner nor keep many small kernels waiting, because each is launched only while no other stage of the process has
//! a step on the GPU ([`GpuUser`]), and a step that begins later waits for the last of them.

use crate::stream::{Event, Stream};
use crate::{CudaError, Gpu};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Devices that a driver shows at most.
const DEVICES: usize = 64;
static TAKEN: [AtomicBool; DEVICES] = [const { AtomicBool::new(false) }; DEVICES];
static USERS: [Users<Event>; DEVICES] = [const { Users::new() }; DEVICES];

/// The right to launch blocks that wait for each other on a GPU. Its owner keeps it until the last of its launches has
/// ended; dropping it gives it back.
pub(crate) struct Spinning {
    index: usize,
}

impl Spinning {
    /// Takes it.
    ///
    /// # Errors
    /// Why it cannot be had, in words.
    pub fn begin(gpu: &Gpu) -> Result<Spinning, &'static str> {
        possible(gpu)?;
        take(gpu.index()).ok_or(TWO)
    }
}

/// Why a second owner is refused.
const TWO: &str = "this GPU has a persistent one already";

/// Whether a GPU may have such launches; why not, in words.
fn possible(gpu: &Gpu) -> Result<(), &'static str> {
    if gpu.is_shared() {
        return Err("under MPS other programs may keep a part of the GPU from a persistent one");
    }
    if gpu.spinning_is_forbidden() {
        return Err("a persistent one has waited in vain on this GPU");
    }
    Ok(())
}

fn take(index: usize) -> Option<Spinning> {
    let free = TAKEN.get(index)?.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire);
    free.is_ok().then_some(Spinning { index })
}

impl Drop for Spinning {
    fn drop(&mut self) {
        TAKEN[self.index].store(false, Ordering::Release);
    }
}

/// The right to launch blocks that wait for each other on all of a GPU, while no other stage uses it. Its owner keeps it
/// until the last of its launches has ended; dropping it gives it back.
pub(crate) struct WholeGpu {
    users: &'static Users<Event>,
}

impl WholeGpu {
    /// Takes it. `ended`: for the last of its launches.
    ///
    /// # Errors
    /// Why it cannot be had, in words.
    pub fn begin(gpu: &Gpu, ended: Event) -> Result<WholeGpu, &'static str> {
        possible(gpu)?;
        let users = users_of(gpu);
        if users.take_whole(ended) { Ok(WholeGpu { users }) } else { Err(TWO) }
    }

    /// Has `launch` queue a launch on `stream` if no other stage uses the GPU, and says whether it did. A step of another
    /// stage that begins later waits for the launch on the device.
    ///
    /// # Errors
    /// Those of `launch`, and what the driver says.
    pub fn launch(&self, stream: &Stream, launch: impl FnOnce() -> Result<(), CudaError>) -> Result<bool, CudaError> {
        self.users.launch(|ended| {
            launch()?;
            ended.record(stream)
        })
    }
}

impl Drop for WholeGpu {
    fn drop(&mut self) {
        self.users.give_whole_back();
    }
}

/// A stage that uses a GPU, and has no launches over all of it. Its steps end in the order in which they begin.
pub(crate) struct GpuUser {
    users: &'static Users<Event>,
    id: u64,
}

impl GpuUser {
    /// A stage without steps.
    pub fn new(gpu: &Gpu) -> GpuUser {
        let users = users_of(gpu);
        GpuUser { users, id: users.join() }
    }

    /// Begins a step, whose work is queued on `stream` from now on.
    ///
    /// # Errors
    /// What the driver says; then no step has begun.
    pub fn begin(&self, stream: &Stream) -> Result<GpuUse, CudaError> {
        let step = self.users.begin(self.id, |launched| stream.wait(launched))?;
        Ok(GpuUse { users: self.users, id: self.id, step })
    }
}

impl Drop for GpuUser {
    /// The stage has waited for its stream.
    fn drop(&mut self) {
        self.users.leave(self.id);
    }
}

/// A step on a GPU. Where it is dropped before it has ended, because a launch or a stage has failed, its work may still
/// run: then it counts until a later step of its stage has ended, or the stage.
#[must_use]
pub(crate) struct GpuUse {
    users: &'static Users<Event>,
    id: u64,
    step: u64,
}

impl GpuUse {
    /// The device has done the step, and so all earlier ones of the stage.
    pub fn ended(&self) {
        self.users.end(self.id, self.step);
    }

    /// Nothing was queued in the step.
    pub fn unused(self) {
        self.users.cancel(self.id, self.step);
    }
}

/// A device beyond the last one shares a place: its stages may see users that it does not have.
fn users_of(gpu: &Gpu) -> &'static Users<Event> {
    &USERS[gpu.index() % DEVICES]
}

/// The users of a GPU in this process. `E`: an event.
struct Users<E>(Mutex<State<E>>);

struct State<E> {
    stages: Vec<Steps>,
    /// Stages so far.
    joined: u64,
    /// Behind the last launch over the whole GPU; `None` where no stage has any.
    whole: Option<E>,
}

/// The steps of a stage, which end in their order.
struct Steps {
    id: u64,
    begun: u64,
    ended: u64,
}

impl<E> Users<E> {
    const fn new() -> Users<E> {
        Users(Mutex::new(State { stages: Vec::new(), joined: 0, whole: None }))
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self) -> u64 {
        let mut state = self.lock();
        state.joined += 1;
        let id = state.joined;
        state.stages.push(Steps { id, begun: 0, ended: 0 });
        id
    }

    fn leave(&self, id: u64) {
        self.lock().stages.retain(|stage| stage.id != id);
    }

    /// Counts a step, behind `wait` for the last launch over the whole GPU.
    fn begin(&self, id: u64, wait: impl FnOnce(&E) -> Result<(), CudaError>) -> Result<u64, CudaError> {
        let mut state = self.lock();
        state.whole.as_ref().map_or(Ok(()), wait)?;
        Ok(state.steps(id).map_or(0, |stage| {
            stage.begun += 1;
            stage.begun
        }))
    }

    fn end(&self, id: u64, step: u64) {
        if let Some(stage) = self.lock().steps(id) {
            stage.ended = stage.ended.max(step);
        }
    }

    /// The last step that began is none.
    fn cancel(&self, id: u64, step: u64) {
        if let Some(stage) = self.lock().steps(id).filter(|stage| stage.begun == step) {
            stage.begun -= 1;
        }
    }

    /// Whether it could be had.
    fn take_whole(&self, event: E) -> bool {
        let mut state = self.lock();
        let free = state.whole.is_none();
        if free {
            state.whole = Some(event);
        }
        free
    }

    fn give_whole_back(&self) {
        self.lock().whole = None;
    }

    /// The lock is held meanwhile: no step begins between the launch and its event.
    fn launch(&self, launch: impl FnOnce(&E) -> Result<(), CudaError>) -> Result<bool, CudaError> {
        let state = self.lock();
        let used = state.stages.iter().any(|stage| stage.ended < stage.begun);
        match &state.whole {
            Some(ended) if !used => launch(ended).map(|()| true),
            _ => Ok(false),
        }
    }
}

impl<E> State<E> {
    fn steps(&mut self, id: u64) -> Option<&mut Steps> {
        self.stages.iter_mut().find(|stage| stage.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_gpu_has_one_owner_at_a_time() {
        let last = DEVICES - 1;
        let owner = take(last);
        assert!(owner.is_some() && take(last).is_none() && take(last - 1).is_some());
        drop(owner);
        assert!(take(last).is_some());
        assert!(take(DEVICES).is_none());
    }

    /// A GPU without a driver: an event is the number of launches that it lies behind, and a stream waits for such a number.
    #[derive(Default)]
    struct Device {
        launched: Cell<u32>,
        waited: Cell<u32>,
    }

    impl Device {
        /// Whether a launch over the whole GPU was possible.
        fn launch(&self, users: &Users<Cell<u32>>) -> bool {
            let launch = |event: &Cell<u32>| {
                self.launched.set(self.launched.get() + 1);
                event.set(self.launched.get());
                Ok(())
            };
            users.launch(launch).unwrap()
        }

        /// A step of a stage, whose stream waits first.
        fn begin(&self, users: &Users<Cell<u32>>, id: u64) -> u64 {
            let wait = |event: &Cell<u32>| {
                self.waited.set(event.get());
                Ok(())
            };
            users.begin(id, wait).unwrap()
        }
    }

    fn users() -> Users<Cell<u32>> {
        let users = Users::new();
        assert!(users.take_whole(Cell::new(0)));
        users
    }

    #[test]
    fn the_whole_gpu_is_had_while_no_other_stage_has_a_step() {
        let (users, device) = (users(), Device::default());
        let (talker, vocoder) = (users.join(), users.join());
        assert!(device.launch(&users), "stages without steps");
        let frame = device.begin(&users, talker);
        assert!(!device.launch(&users));
        let chunk = device.begin(&users, vocoder);
        users.end(talker, frame);
        assert!(!device.launch(&users), "the vocoder's step is not over");
        users.end(vocoder, chunk);
        assert!(device.launch(&users));
        assert_eq!(device.launched.get(), 2);
    }

    #[test]
    fn a_step_waits_for_the_last_launch_over_the_whole_gpu() {
        let (users, device) = (users(), Device::default());
        let stage = users.join();
        for launches in [2, 5] {
            while device.launched.get() < launches {
                assert!(device.launch(&users));
            }
            let step = device.begin(&users, stage);
            assert_eq!(device.waited.get(), launches);
            users.end(stage, step);
        }
    }

    #[test]
    fn a_step_that_is_not_waited_for_counts_until_a_later_one_has_ended_or_its_stage() {
        let (users, device) = (users(), Device::default());
        let stage = users.join();
        let (_lost, later) = (device.begin(&users, stage), device.begin(&users, stage));
        assert!(!device.launch(&users));
        users.end(stage, later);
        assert!(device.launch(&users));
        device.begin(&users, stage);
        assert!(!device.launch(&users));
        users.leave(stage);
        assert!(device.launch(&users));
        users.end(stage, 9);
        assert!(device.launch(&users), "a step may outlive its stage");
    }

    #[test]
    fn a_step_in_which_nothing_was_queued_does_not_end_those_before_it() {
        let (users, device) = (users(), Device::default());
        let stage = users.join();
        let first = device.begin(&users, stage);
        let second = device.begin(&users, stage);
        users.cancel(stage, second);
        assert!(!device.launch(&users));
        users.end(stage, first);
        assert!(device.launch(&users));
        let third = device.begin(&users, stage);
        assert!(!device.launch(&users));
        users.end(stage, third);
        assert!(device.launch(&users));
    }

    #[test]
    fn a_step_that_could_not_wait_has_not_begun() {
        let (users, device) = (users(), Device::default());
        let stage = users.join();
        let failed = || CudaError::Absent("a driver".into());
        assert_eq!(users.begin(stage, |_| Err(failed())), Err(failed()));
        assert!(device.launch(&users));
        assert_eq!(users.launch(|_| Err(failed())), Err(failed()));
    }

    #[test]
    fn one_stage_has_the_whole_gpu_and_without_it_steps_wait_for_nothing() {
        let (users, device) = (users(), Device::default());
        let stage = users.join();
        assert!(!users.take_whole(Cell::new(0)));
        assert!(device.launch(&users));
        users.give_whole_back();
        assert!(!device.launch(&users));
        let step = users.begin(stage, |_| panic!("there is nothing to wait for"));
        assert_eq!(step, Ok(1));
        assert!(users.take_whole(Cell::new(0)));
        assert!(!device.launch(&users), "a step that began before");
        users.end(stage, 1);
        assert!(device.launch(&users));
    }
}
