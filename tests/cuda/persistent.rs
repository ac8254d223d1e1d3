//! The layers and the predictor that stay on the GPU, against the graph of kernels that they take the place of.

use crate::gpu;
use crate::talker::{Request, Speech, options, requests_for_named, sizeable, speak};
use candle_core::Device;
use omni_actors::config::Precision;
use omni_actors::core::ids::Slot;
use omni_actors::cuda::talker::{CudaTalker, TalkerNet, TalkerOptions};
use omni_actors::cuda::{Gpu, Priority};
use omni_actors::model::ModelError;
use omni_actors::model::stage::{SequenceSpec, SequenceWork, StageData, StageModel};
use omni_actors::telemetry::trace::Recorder;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that are copied again and again beside the talker: more than caches hold.
const COPIED: usize = 256 << 20;

/// Held by tests that want persistent kernels: a GPU has one talker and one thinker with them in a process.
pub fn only_persistent() -> MutexGuard<'static, ()> {
    static ONLY: Mutex<()> = Mutex::new(());
    ONLY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn net(gpu: &Gpu) -> Arc<TalkerNet> {
    let checkpoint = sizeable();
    let loader = checkpoint.loader(&["talker"], &Device::Cpu);
    let net = TalkerNet::load(gpu, Precision::Bf16, &loader, checkpoint.family()).unwrap();
    loader.finish().unwrap();
    Arc::new(net)
}

fn talker(net: &Arc<TalkerNet>, persistent: Option<Duration>) -> CudaTalker {
    talker_of(net, TalkerOptions { persistent, ..options() })
}

fn talker_of(net: &Arc<TalkerNet>, options: TalkerOptions) -> CudaTalker {
    CudaTalker::new(Arc::clone(net), &options, Recorder::default()).unwrap()
}

/// A talker of the 1.7B with all of them.
pub fn talker_of_real_sizes(gpu: &Gpu) -> CudaTalker {
    talker(&net(gpu), Some(TalkerOptions::PERSISTENT))
}

/// Whether the kernels are for this GPU.
fn served(gpu: &Gpu) -> bool {
    gpu.capability() == 90 && gpu.multiprocessors() >= 128
}

/// While `speak` runs, another stream takes all bandwidth that it can get: weights come late, and in any order.
fn beside_copies<T>(gpu: &Gpu, speak: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            gpu.bind().unwrap();
            let stream = gpu.stream(Priority::Normal).unwrap();
            let room = gpu.alloc::<u8>("copies", 2 * COPIED).unwrap();
            while !stop.load(Ordering::Relaxed) {
                room.copy_async(&stream, 0, &room, COPIED, COPIED).unwrap();
                stream.synchronize().unwrap();
            }
        });
        let spoken = speak();
        stop.store(true, Ordering::Relaxed);
        spoken
    })
}

/// That the requests are spoken as `want` has them by so many at once, whatever runs beside them.
fn says_the_same(gpu: &Gpu, talker: &mut CudaTalker, requests: &[Request], want: &[Speech], together: &[usize]) {
    for together in together {
        let quiet = speak(talker, requests, *together, 1000, 2);
        let loaded = beside_copies(gpu, || speak(talker, requests, *together, 1000, 2));
        for (i, want) in want.iter().enumerate() {
            assert_eq!(&quiet[i], want, "request {i} of {together} at once");
            assert_eq!(&loaded[i], want, "request {i} of {together} at once, beside copies");
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn their_codes_are_those_of_the_graph_whatever_runs_beside_them() {
    let gpu = gpu();
    let _only = only_persistent();
    let net = net(&gpu);
    let requests = requests_for_named(&sizeable(), 32);
    let of_graph: Vec<Speech> = speak(&mut talker(&net, None), &requests, 16, 1000, 1);
    let mut talker = talker(&net, Some(TalkerOptions::PERSISTENT));
    assert_eq!(talker.persists(), [served(&gpu); 2]);
    says_the_same(&gpu, &mut talker, &requests, &of_graph, &[16, 13, 8, 5, 4, 3, 2, 1]);
}

#[test]
#[ignore = "needs a GPU"]
fn the_codes_of_many_are_those_of_the_graph_whatever_runs_beside_them() {
    let gpu = gpu();
    let _only = only_persistent();
    let net = net(&gpu);
    let requests = requests_for_named(&sizeable(), 130);
    let many = |persistent| {
        let buckets = vec![16, 24, 32, 48, 64, 96, 128];
        talker_of(&net, TalkerOptions { slots: 136, buckets, persistent, ..options() })
    };
    let of_graph: Vec<Speech> = speak(&mut many(None), &requests, 16, 1000, 1);
    let mut talker = many(Some(TalkerOptions::PERSISTENT));
    assert_eq!(talker.persists(), [served(&gpu); 2]);
    says_the_same(&gpu, &mut talker, &requests, &of_graph, &[128, 90, 64, 40, 32, 20]);
}

#[test]
#[ignore = "needs a GPU"]
fn a_launch_that_waits_in_vain_fails_its_step_and_the_next_talker_takes_the_graph() {
    let gpu = gpu();
    let _only = only_persistent();
    let net = net(&gpu);
    let requests = requests_for_named(&sizeable(), 4);
    let mut hopeless = talker(&net, Some(Duration::ZERO));
    if served(&gpu) {
        let (slot, request) = (Slot(0), &requests[0]);
        hopeless.open(slot, SequenceSpec::Talker(request.sequence.clone())).unwrap();
        hopeless.push_input(slot, Some(StageData::Tokens(request.text.clone())), true).unwrap();
        let advance = request.sequence.prefill_positions();
        let told = hopeless.launch(&[SequenceWork { slot, advance }]).unwrap().wait().unwrap_err();
        assert!(matches!(told, ModelError::Device(_)), "{told}");
        assert!(told.to_string().contains("a persistent kernel waited in vain for 0 ms"), "{told}");
    }
    drop(hopeless);
    let want = speak(&mut talker(&net, None), &requests, 4, 1000, 1);
    let mut next = talker(&net, Some(TalkerOptions::PERSISTENT));
    assert_eq!(next.persists(), [false; 2]);
    assert_eq!(speak(&mut next, &requests, 4, 1000, 1), want);
}

#[test]
#[ignore = "needs a GPU"]
fn a_gpu_has_one_at_a_time() {
    let gpu = gpu();
    let _only = only_persistent();
    let net = net(&gpu);
    let first = talker(&net, Some(TalkerOptions::PERSISTENT));
    let second = talker(&net, Some(TalkerOptions::PERSISTENT));
    assert_eq!([first.persists(), second.persists()], [[served(&gpu); 2], [false; 2]]);
    drop(first);
    assert_eq!(talker(&net, Some(TalkerOptions::PERSISTENT)).persists(), [served(&gpu); 2]);
}
