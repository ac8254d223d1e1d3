//! Divides the memory of one GPU between several processes. Arithmetic alone: the caller asks the GPU.
//!
//! Processes that share a device do not know each other's allocations, so the config gives each a part, and a config
//! whose parts exceed the device is refused before any process starts.

use omni_config::{Config, Placement, format_bytes};
use omni_core::ids::StageName;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;

/// What one process may allocate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    bytes: u64,
    /// The config keys that set it, for messages.
    keys: String,
}

/// An allocation beyond the part of its process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} needs {wanted} MiB of GPU memory and {left} MiB of {keys} are left; raise that, or lower [device] kv_memory or \
     limits.max_requests"
)]
pub struct OverBudget {
    what: &'static str,
    wanted: u64,
    left: u64,
    keys: String,
}

impl Budget {
    /// The budget of the process that runs the stages `here` on one GPU; `None` where it has the GPU to itself.
    pub fn of(config: &Config, family: &[StageName], here: &[StageName], index: usize) -> Option<Budget> {
        let stages = on(config, here, index);
        if !shared(config, &on(config, family, index)) || stages.is_empty() {
            return None;
        }
        let bytes = stages.iter().map(|stage| config.stage(*stage).device_memory).sum::<Option<u64>>()?;
        Some(Budget { bytes, keys: keys(&stages) })
    }

    /// Whether the process may allocate `bytes` more when it holds `allocated`.
    ///
    /// # Errors
    /// [`OverBudget`], which names the keys to change.
    pub fn check(&self, what: &'static str, allocated: u64, bytes: u64) -> Result<(), OverBudget> {
        let left = self.bytes.saturating_sub(allocated);
        if bytes <= left {
            return Ok(());
        }
        Err(OverBudget { what, wanted: bytes.div_ceil(MIB), left: left / MIB, keys: self.keys.clone() })
    }
}

/// Whether all stages of a pipeline fit on the GPUs that several processes share; `total` is the memory of one in
/// bytes, if known. A GPU that one process has to itself always fits.
///
/// # Errors
/// What to write into the config, as text.
pub fn fit(config: &Config, family: &[StageName], total: impl Fn(usize) -> Option<u64>) -> Result<(), String> {
    let indices: BTreeSet<usize> = family.iter().flat_map(|stage| config.gpus(*stage)).collect();
    for index in indices {
        if let Some(total) = total(index) {
            fit_one(config, &on(config, family, index), total)?;
        }
    }
    Ok(())
}

fn fit_one(config: &Config, stages: &[StageName], total: u64) -> Result<(), String> {
    if !shared(config, stages) {
        return Ok(());
    }
    let memory = |stage: StageName| config.stage(stage).device_memory;
    let silent: Vec<StageName> = stages.iter().copied().filter(|stage| memory(*stage).is_none()).collect();
    if !silent.is_empty() {
        return Err(format!(
            "{}: give a size in quotes, such as \"8GiB\": processes that share a GPU cannot see how much the others need; \
             all stages on it together may have {}",
            keys(&silent),
            format_bytes(total)
        ));
    }
    let sum = stages.iter().filter_map(|stage| memory(*stage)).fold(0, u64::saturating_add);
    if sum > total {
        let (sum, total) = (format_bytes(sum), format_bytes(total));
        return Err(format!("{}: {sum} together, and the GPU has {total}; lower one of them", keys(stages)));
    }
    Ok(())
}

/// The stages that run on one GPU.
fn on(config: &Config, stages: &[StageName], index: usize) -> Vec<StageName> {
    stages.iter().copied().filter(|stage| config.gpus(*stage).contains(&index)).collect()
}

/// Whether these stages run in more than one process.
fn shared(config: &Config, stages: &[StageName]) -> bool {
    stages.len() > 1 && stages.iter().any(|stage| config.stage(*stage).placement == Placement::Process)
}

fn keys(stages: &[StageName]) -> String {
    stages.iter().map(|stage| format!("stages.{stage}.device_memory")).collect::<Vec<_>>().join(" + ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const OMNI: [StageName; 3] = StageName::OF_TEXT;

    fn config(parts: [(Placement, Option<u64>); 3]) -> Config {
        let mut config = Config::default();
        for (name, (placement, memory)) in StageName::OF_TEXT.into_iter().zip(parts) {
            let stage = &mut config.stages[name as usize];
            (stage.placement, stage.device_memory) = (placement, memory.map(|gib| gib * GIB));
        }
        config
    }

    use Placement::{Process, Thread};

    #[test]
    fn one_process_needs_no_parts() {
        let config = config([(Thread, None); 3]);
        assert_eq!(fit(&config, &OMNI, |_| Some(GIB)), Ok(()));
        assert_eq!(Budget::of(&config, &OMNI, &OMNI, 0), None);
    }

    #[test]
    fn parts_that_are_missing_or_too_large_are_refused_with_what_to_write() {
        let told =
            fit(&config([(Thread, Some(8)), (Process, None), (Thread, None)]), &OMNI, |_| Some(80 * GIB)).unwrap_err();
        assert!(told.starts_with("stages.talker.device_memory + stages.vocoder.device_memory: give a size"), "{told}");
        let told =
            fit(&config([(Thread, Some(60)), (Process, Some(16)), (Thread, Some(5))]), &OMNI, |_| Some(80 * GIB));
        assert!(told.unwrap_err().contains("81.0 GiB together, and the GPU has 80.0 GiB"));
        assert_eq!(
            fit(&config([(Thread, Some(60)), (Process, Some(16)), (Thread, Some(4))]), &OMNI, |_| Some(80 * GIB)),
            Ok(())
        );
        assert!(fit(&config([(Process, Some(u64::MAX / GIB)); 3]), &OMNI, |_| Some(GIB)).is_err(), "sums do not wrap");
    }

    #[test]
    fn a_gpu_that_one_process_has_to_itself_is_not_shared_out() {
        let mut config = config([(Thread, None), (Process, None), (Thread, None)]);
        config.stages[StageName::Thinker as usize].device_index = Some(1);
        config.stages[StageName::Vocoder as usize].device_index = Some(1);
        assert_eq!(fit(&config, &OMNI, |_| Some(80 * GIB)), Ok(()));
        assert_eq!(Budget::of(&config, &OMNI, &[StageName::Talker], 0), None);
        config.stages[StageName::Thinker as usize].device_index = None;
        let told = fit(&config, &OMNI, |_| Some(80 * GIB)).unwrap_err();
        assert!(told.starts_with("stages.thinker.device_memory + stages.talker.device_memory: give"), "{told}");
    }

    #[test]
    fn stages_of_one_process_share_their_parts() {
        let config = config([(Thread, Some(60)), (Process, Some(16)), (Thread, Some(4))]);
        let threads = Budget::of(&config, &OMNI, &[StageName::Thinker, StageName::Vocoder], 0).unwrap();
        assert_eq!(threads.check("weights", 60 * GIB, 4 * GIB), Ok(()));
        let told = threads.check("the cache", 62 * GIB, 2 * GIB + 1).unwrap_err().to_string();
        let expected = "the cache needs 2049 MiB of GPU memory and 2048 MiB of stages.thinker.device_memory + \
                        stages.vocoder.device_memory are left; raise that, or lower [device] kv_memory or limits.max_requests";
        assert_eq!(told, expected);
        let talker = Budget::of(&config, &OMNI, &[StageName::Talker], 0).unwrap();
        assert!(talker.check("weights", 0, 16 * GIB).is_ok() && talker.check("weights", 17 * GIB, 1).is_err());
    }
}
