//! What `placement = "auto"` means: a pure function of the config and of what is found on the machine.
//!
//! A stage on a GPU gets a process of its own where that costs little: where it has a GPU to itself, or where the
//! processes of one GPU run at the same time, which the MPS daemon sees to (without it their contexts take turns: 5 to
//! 18 % more time per frame, docs/performance.md), and each stage on that GPU has its `device_memory`, because
//! processes do not see what others allocate. Stages that hand embeddings over on the GPU stay in one process. On a CPU
//! a process protects from little and nothing is gained.

use super::{Config, DeviceKind, Placement};
use omni_core::ids::StageName;
use std::path::PathBuf;

/// What the machine and the program have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What computes.
    pub device: DeviceKind,
    /// The folder in which a daemon of CUDA MPS is reached.
    pub mps: Option<PathBuf>,
    /// Whether the program that serves a stage is known.
    pub program: bool,
}

/// Where a stage runs, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Which stage.
    pub stage: StageName,
    /// Never [`Placement::Auto`].
    pub placement: Placement,
    /// In words; `None` where the config says so.
    pub why: Option<String>,
}

/// Decides for each stage of a family.
pub fn placed(config: &Config, family: &[StageName], found: &Found) -> Vec<Placed> {
    let decide = |stage: StageName| match config.stage(stage).placement {
        Placement::Auto => {
            let (placement, why) = auto(config, family, stage, found);
            Placed { stage, placement, why: Some(why) }
        }
        placement => Placed { stage, placement, why: None },
    };
    family.iter().copied().map(decide).collect()
}

fn auto(config: &Config, family: &[StageName], stage: StageName, found: &Found) -> (Placement, String) {
    let thread = |why: &str| (Placement::Thread, why.to_owned());
    if found.device == DeviceKind::Cpu {
        return thread("on a CPU");
    }
    if !found.program {
        return thread("the omni-actors program is not known");
    }
    let pair = [StageName::Thinker, StageName::Talker];
    if config.transfer.device_handover && pair.contains(&stage) && pair.iter().all(|stage| family.contains(stage)) {
        return thread("embeddings are handed over on the GPU (transfer.device_handover)");
    }
    let own = config.gpus(stage);
    let beside = |other: &StageName| *other != stage && !config.gpus(*other).is_disjoint(&own);
    let others: Vec<StageName> = family.iter().copied().filter(beside).collect();
    let gpus = own.iter().map(|gpu| format!("GPU {gpu}")).collect::<Vec<_>>().join(", ");
    if others.is_empty() {
        return (Placement::Process, format!("it has {gpus} to itself"));
    }
    let Some(folder) = &found.mps else {
        return thread(&format!("it shares {gpus}, and no MPS daemon runs"));
    };
    let without = |stage: &&StageName| config.stage(**stage).device_memory.is_none();
    if let Some(silent) = [stage].iter().chain(&others).find(without) {
        return thread(&format!("it shares {gpus}, and stages.{silent}.device_memory is not set"));
    }
    // One that the config holds in the server's process allocates there, and shares the GPU just as well.
    (Placement::Process, format!("MPS at {} lets the processes of {gpus} run together", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTS: [StageName; 2] = [StageName::Talker, StageName::Vocoder];

    fn found(device: DeviceKind, mps: bool) -> Found {
        Found { device, mps: mps.then(|| PathBuf::from("/tmp/nvidia-mps")), program: true }
    }

    fn with_memory() -> Config {
        let mut config = Config::default();
        config.stages.iter_mut().for_each(|stage| stage.device_memory = Some(8 << 30));
        config
    }

    fn all(config: &Config, found: &Found) -> Vec<(Placement, String)> {
        placed(config, &TTS, found)
            .into_iter()
            .map(|placed| (placed.placement, placed.why.unwrap_or_default()))
            .collect()
    }

    #[test]
    fn every_case_has_its_place_and_its_reason() {
        use DeviceKind::{Cpu, Cuda};
        use Placement::{Process, Thread};
        let bare = Config::default();
        let mut apart = Config::default();
        apart.stages[StageName::Vocoder as usize].device_index = Some(1);
        let unknown = Found { program: false, ..found(Cuda, true) };
        for (config, found, placement, why) in [
            (&with_memory(), found(Cpu, true), Thread, "on a CPU"),
            (&with_memory(), unknown, Thread, "the omni-actors program is not known"),
            (&with_memory(), found(Cuda, false), Thread, "it shares GPU 0, and no MPS daemon runs"),
            (&bare, found(Cuda, true), Thread, "it shares GPU 0, and stages.talker.device_memory is not set"),
            (
                &with_memory(),
                found(Cuda, true),
                Process,
                "MPS at /tmp/nvidia-mps lets the processes of GPU 0 run together",
            ),
            (&apart, found(Cuda, false), Process, "it has GPU 0 to itself"),
        ] {
            let first = &all(config, &found)[0];
            assert_eq!((first.0, first.1.as_str()), (placement, why));
        }
        assert!(all(&apart, &found(Cuda, false)).iter().all(|(placement, _)| *placement == Process));
    }

    #[test]
    fn stages_that_hand_embeddings_over_on_the_gpu_stay_together() {
        let mut config = with_memory();
        let places = |config: &Config| {
            let placed = placed(config, &StageName::OF_TEXT, &found(DeviceKind::Cuda, true));
            placed.into_iter().map(|placed| placed.placement).collect::<Vec<_>>()
        };
        assert_eq!(places(&config), [Placement::Thread, Placement::Thread, Placement::Process]);
        config.transfer.device_handover = false;
        assert_eq!(places(&config), [Placement::Process; 3]);
    }

    #[test]
    fn what_the_config_says_is_not_decided() {
        let mut config = with_memory();
        config.stages[StageName::Talker as usize].placement = Placement::Thread;
        config.stages[StageName::Vocoder as usize].placement = Placement::Process;
        for device in [DeviceKind::Cpu, DeviceKind::Cuda] {
            let placed = placed(&config, &TTS, &found(device, true));
            assert_eq!([placed[0].placement, placed[1].placement], [Placement::Thread, Placement::Process]);
            assert!(placed.iter().all(|placed| placed.why.is_none()));
        }
    }
}
