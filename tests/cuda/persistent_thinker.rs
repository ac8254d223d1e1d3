//! The thinker's layers that stay on the GPU, against the graph of kernels that they take the place of: at the sizes of
//! the 30B, with two layers of random weights.

use crate::gpu;
use crate::persistent::{only_persistent, talker_of_real_sizes};
use crate::talker::{requests_for_named, sizeable};
use crate::thinker::{Said, alone, request};
use candle_core::Device;
use omni_actors::config::{Precision, WeightsKind};
use omni_actors::core::ids::Slot;
use omni_actors::cuda::Gpu;
use omni_actors::cuda::thinker::{CudaThinker, KeptMemory, ThinkerNet, ThinkerOptions};
use omni_actors::model::stage::{Launched, SequenceSpec, SequenceWork, StageData, StageModel, ThinkerSpec};
use omni_actors::model::{Checkpoint, ModelError};
use omni_actors::telemetry::trace::Recorder;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const LAYERS: usize = 2;
const VOCABULARY: u32 = 50_000;
const LIMIT: Option<Duration> = Some(ThinkerOptions::PERSISTENT);

fn net(gpu: &Gpu) -> Arc<ThinkerNet> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/models/Qwen3-Omni-30B-A3B-Instruct");
    let checkpoint = Checkpoint::open_as(&folder, WeightsKind::Random { seed: 5 }, None).unwrap();
    let mut config = checkpoint.omni().unwrap().thinker.clone();
    config.text.num_hidden_layers = LAYERS;
    let loader = checkpoint.loader(&["thinker"], &Device::Cpu);
    Arc::new(ThinkerNet::load(gpu, Precision::Bf16, &loader, &config).unwrap())
}

fn thinker(net: &Arc<ThinkerNet>, persistent: Option<Duration>) -> CudaThinker {
    let options = ThinkerOptions {
        slots: 4,
        batch: 4,
        prefill_chunk: 256,
        run_ahead: 2,
        kv_memory: None,
        embeddings_in_step: false,
        persistent,
    };
    CudaThinker::new(Arc::clone(net), &options, &KeptMemory::default(), Recorder::default()).unwrap()
}

/// Whether the kernel is for this GPU.
fn served(gpu: &Gpu) -> bool {
    gpu.capability() == 90 && gpu.multiprocessors() >= 132
}

/// Requests that hand nothing on, some of them behind a long prompt.
fn requests(count: u32) -> Vec<ThinkerSpec> {
    let asked = |number| {
        let spec = ThinkerSpec { emit: None, max_tokens: 40, ..request(number, VOCABULARY) };
        let long = (0..700 * (number % 3)).map(|i| (i * 131 + number * 17) % VOCABULARY);
        ThinkerSpec { prompt: spec.prompt.iter().copied().chain(long).collect(), ..spec }
    };
    (0..count).map(asked).collect()
}

/// What a request says, and how often the persistent kernel was launched for it, and was not because another stage used the
/// GPU, which tests beside this one do; zeros where there is no such kernel.
fn counted<T>(stage: &mut CudaThinker, run: impl FnOnce(&mut CudaThinker) -> T) -> (T, [u64; 2]) {
    let before = stage.persisted().unwrap_or_default();
    let said = run(stage);
    let after = stage.persisted().unwrap_or_default();
    (said, [after[0] - before[0], after[1] - before[1]])
}

/// That a request says `want`, and does so at last with the persistent kernel, if there is one: other tests use the GPU for
/// moments.
fn persists_and_says(stage: &mut CudaThinker, request: &ThinkerSpec, want: &Said) {
    for _ in 0..500 {
        let (said, [launched, refused]) = counted(stage, |stage| alone(stage, request, 1000));
        assert_eq!(said, *want);
        if stage.persisted().is_none() {
            return;
        }
        // The token behind a prompt is of the prompt's pass, unless the prompt is one position.
        assert!(launched + refused + 1 >= want.tokens.len() as u64, "{launched} launches, {refused} refused");
        if launched > refused {
            return;
        }
    }
    panic!("the GPU is used by others all the time: run this test alone");
}

#[test]
#[ignore = "needs a GPU"]
fn the_tokens_of_a_sequence_alone_are_those_of_the_graph() {
    let gpu = gpu();
    let _only = only_persistent();
    let net = net(&gpu);
    let mut graph = thinker(&net, None);
    let mut stage = thinker(&net, LIMIT);
    assert_eq!((graph.persisted(), stage.persisted().is_some()), (None, served(&gpu)));
    for request in &requests(9) {
        let want = alone(&mut graph, request, 1000);
        persists_and_says(&mut stage, request, &want);
    }
}

/// What both say when `other` joins `long` after a few tokens and leaves before it, with two steps launched ahead.
fn joined(stage: &mut CudaThinker, long: &ThinkerSpec, other: &ThinkerSpec) -> [Said; 2] {
    let specs = [long, other];
    let mut said = [Said::default(), Said::default()];
    let mut left = specs.map(|spec| spec.prompt.len() as u32);
    let mut open = [false, false];
    let mut pending: VecDeque<(Vec<usize>, Launched)> = VecDeque::new();
    for step in 0.. {
        let joins = [step == 0, step == 10];
        let mut work = Vec::new();
        let mut of = Vec::new();
        for which in 0..2 {
            let slot = Slot(which as u32);
            if joins[which] {
                stage.open(slot, SequenceSpec::Thinker(specs[which].clone())).unwrap();
                open[which] = true;
            }
            if open[which] {
                work.push(SequenceWork { slot, advance: left[which].max(1) });
                left[which] = 0;
                of.push(which);
            }
        }
        if !work.is_empty() {
            pending.push_back((of, stage.launch(&work).unwrap()));
        }
        while pending.len() > if work.is_empty() { 0 } else { 2 } {
            let (of, launched) = pending.pop_front().unwrap();
            for (which, output) in of.into_iter().zip(launched.wait().unwrap().sequences) {
                said[which].take(output.unwrap());
                if open[which] && said[which].finish.is_some() {
                    stage.close(Slot(which as u32));
                    open[which] = false;
                }
            }
        }
        if step > 10 && pending.is_empty() && open == [false; 2] {
            break;
        }
    }
    said
}

#[test]
#[ignore = "needs a GPU"]
fn a_second_sequence_that_joins_and_leaves_changes_no_token() {
    let gpu = gpu();
    let _only = only_persistent();
    let net = net(&gpu);
    let requests = requests(4);
    let long = ThinkerSpec { eos: [].into(), max_tokens: 80, ..requests[1].clone() };
    let other = ThinkerSpec { eos: [].into(), max_tokens: 12, ..requests[3].clone() };
    let mut graph = thinker(&net, None);
    let want = [&long, &other].map(|spec| alone(&mut graph, spec, 1000));
    let mut stage = thinker(&net, LIMIT);
    let (said, [launched, refused]) = counted(&mut stage, |stage| joined(stage, &long, &other));
    assert_eq!(said, want);
    let of_both = 79 - (launched + refused);
    assert!(stage.persisted().is_none() || (10..=14).contains(&of_both), "{of_both} steps of both");
}

#[test]
#[ignore = "needs a GPU"]
fn a_sequence_that_hands_embeddings_on_takes_the_graph() {
    let gpu = gpu();
    let _only = only_persistent();
    let net = net(&gpu);
    let handing = request(4, VOCABULARY);
    assert!(handing.emit.is_some());
    let want = alone(&mut thinker(&net, None), &handing, 1000);
    let mut stage = thinker(&net, LIMIT);
    assert_eq!(counted(&mut stage, |stage| alone(stage, &handing, 1000)), (want, [0, 0]));
}

#[test]
#[ignore = "needs a GPU"]
fn a_thinker_takes_the_graph_while_a_talker_has_a_step() {
    let gpu = gpu();
    let _only = only_persistent();
    let net = net(&gpu);
    let request = &requests(1)[0];
    let want = alone(&mut thinker(&net, None), request, 1000);
    let mut stage = thinker(&net, LIMIT);
    let mut talker = talker_of_real_sizes(&gpu);
    persists_and_says(&mut stage, request, &want);
    let spoken = &requests_for_named(&sizeable(), 1)[0];
    let slot = Slot(0);
    talker.open(slot, SequenceSpec::Talker(spoken.sequence.clone())).unwrap();
    talker.push_input(slot, Some(StageData::Tokens(spoken.text.clone())), true).unwrap();
    let mut step = |advance| talker.launch(&[SequenceWork { slot, advance }]).unwrap();
    let first = step(spoken.sequence.prefill_positions());
    let (said, [launched, _]) = counted(&mut stage, |stage| alone(stage, request, 1000));
    assert_eq!((&said, launched), (&want, 0), "the talker's step was not waited for");
    first.wait().unwrap();
    persists_and_says(&mut stage, request, &want);
    // A step that is dropped counts until the talker has ended.
    drop(step(1));
    let (said, [launched, _]) = counted(&mut stage, |stage| alone(stage, request, 1000));
    assert_eq!((&said, launched), (&want, 0));
    drop(talker);
    persists_and_says(&mut stage, request, &want);
}

#[test]
#[ignore = "needs a GPU"]
fn a_launch_of_a_thinker_that_waits_in_vain_fails_its_step_and_the_next_thinker_takes_the_graph() {
    let gpu = gpu();
    let _only = only_persistent();
    let net = net(&gpu);
    let request = &requests(1)[0];
    let mut hopeless = thinker(&net, Some(Duration::ZERO));
    if served(&gpu) {
        let slot = Slot(0);
        hopeless.open(slot, SequenceSpec::Thinker(request.clone())).unwrap();
        let advance = request.prompt.len() as u32;
        let mut steps = [advance, 1].into_iter().map(|advance| hopeless.step(&[SequenceWork { slot, advance }]));
        let told = steps.find_map(Result::err).unwrap();
        assert!(matches!(told, ModelError::Device(_)), "{told}");
        assert!(told.to_string().contains("a persistent kernel waited in vain for 0 ms"), "{told}");
    }
    drop(hopeless);
    let want = alone(&mut thinker(&net, None), request, 1000);
    let mut next = thinker(&net, LIMIT);
    assert_eq!(next.persisted(), None);
    assert_eq!(alone(&mut next, request, 1000), want);
}

#[test]
#[ignore = "needs a GPU"]
fn a_gpu_has_one_thinker_with_persistent_layers_at_a_time() {
    let gpu = gpu();
    let _only = only_persistent();
    let net = net(&gpu);
    let (first, second) = (thinker(&net, LIMIT), thinker(&net, LIMIT));
    assert_eq!([first.persisted(), second.persisted()].map(|has| has.is_some()), [served(&gpu), false]);
    drop(first);
    assert_eq!(thinker(&net, LIMIT).persisted().is_some(), served(&gpu));
}
