//! How many of a stage there are, and on which GPU each computes.

use super::{Config, DeviceKind, Placement};
use omni_core::ids::StageName;
use std::collections::BTreeSet;

/// The most replicas of a stage.
pub(super) const MOST: usize = 16;
/// The highest number of a GPU.
pub(super) const LAST_GPU: usize = 63;

/// `stages.NAME.replicas`
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Replicas {
    /// So many; several only on a CPU, where nothing tells them apart.
    Count(usize),
    /// One on each of these GPUs, as the driver counts them; on a CPU as many as there are entries.
    On(Vec<usize>),
    /// One on each GPU of the machine; one on a CPU.
    Auto,
}

impl Replicas {
    /// The value of the config, if it is one: a whole number, different numbers of GPUs, or `"auto"`.
    pub(super) fn read(value: &toml::Value) -> Option<Replicas> {
        let number = |value: &toml::Value, most: usize| {
            usize::try_from(value.as_integer()?).ok().filter(|number| *number <= most)
        };
        match value {
            toml::Value::String(word) => (word == "auto").then_some(Replicas::Auto),
            toml::Value::Array(list) if (1..=MOST).contains(&list.len()) => {
                let gpus: Vec<usize> = list.iter().map(|gpu| number(gpu, LAST_GPU)).collect::<Option<_>>()?;
                let different = gpus.iter().collect::<BTreeSet<_>>().len() == gpus.len();
                different.then_some(Replicas::On(gpus))
            }
            value => number(value, MOST).filter(|count| *count > 0).map(Replicas::Count),
        }
    }
}

impl Config {
    /// How many replicas a stage has; on nodes, how many it can have. [`Replicas::Auto`] counts one until
    /// [`settle_replicas`](Config::settle_replicas).
    pub fn replicas(&self, stage: StageName) -> usize {
        if self.stage(stage).placement == Placement::Nodes {
            return self.cluster.max_nodes;
        }
        match &self.stage(stage).replicas {
            Replicas::Count(count) => *count,
            Replicas::On(gpus) => gpus.len(),
            Replicas::Auto => 1,
        }
    }

    /// The GPU of replica `number` of a stage, as the driver counts them.
    pub fn gpu(&self, stage: StageName, number: usize) -> usize {
        let setup = self.stage(stage);
        match &setup.replicas {
            Replicas::On(gpus) if number < gpus.len() => gpus[number],
            _ => setup.device_index.unwrap_or(self.device.index),
        }
    }

    /// The GPUs of all replicas of a stage; none of this machine where it is on nodes.
    pub fn gpus(&self, stage: StageName) -> BTreeSet<usize> {
        if self.stage(stage).placement == Placement::Nodes {
            return BTreeSet::new();
        }
        (0..self.replicas(stage)).map(|number| self.gpu(stage, number)).collect()
    }

    /// Replaces [`Replicas::Auto`] by what it means on a machine with so many GPUs that computes on `device`.
    pub fn settle_replicas(&mut self, device: DeviceKind, gpus: usize) {
        for stage in self.stages.iter_mut().filter(|stage| stage.replicas == Replicas::Auto) {
            stage.replicas = match device {
                DeviceKind::Cuda if gpus > 1 => Replicas::On((0..gpus.min(MOST)).collect()),
                _ => Replicas::Count(1),
            };
        }
    }

    /// Whether each replica has a GPU of its own, on a machine with so many; on a CPU they need none.
    ///
    /// # Errors
    /// What to write into the config, as text.
    pub fn replicas_fit(&self, family: &[StageName], device: DeviceKind, gpus: usize) -> Result<(), String> {
        if device == DeviceKind::Cpu {
            return Ok(());
        }
        for stage in family {
            let key = format!("stages.{stage}.replicas");
            match &self.stage(*stage).replicas {
                Replicas::Count(2..) => {
                    return Err(format!(
                        "{key}: on GPUs each replica has its own; name them, such as [0, 1], or write \"auto\""
                    ));
                }
                Replicas::On(list) => {
                    if let Some(gpu) = list.iter().find(|gpu| **gpu >= gpus) {
                        return Err(format!("{key}: names GPU {gpu}, and the driver shows {gpus}, counted from 0"));
                    }
                }
                Replicas::Count(_) | Replicas::Auto => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(replicas: Replicas) -> Config {
        let mut config = Config::default();
        config.device.index = 2;
        config.stages[StageName::Talker as usize].replicas = replicas;
        config
    }

    #[test]
    fn each_replica_has_the_gpu_that_the_list_names() {
        let config = with(Replicas::On(vec![3, 0]));
        assert_eq!([0, 1].map(|number| config.gpu(StageName::Talker, number)), [3, 0]);
        assert_eq!(config.gpus(StageName::Talker), BTreeSet::from([0, 3]));
        assert_eq!((config.replicas(StageName::Vocoder), config.gpu(StageName::Vocoder, 0)), (1, 2));
    }

    #[test]
    fn auto_is_every_gpu_and_one_on_a_cpu() {
        for (device, gpus, settled) in [
            (DeviceKind::Cuda, 4, Replicas::On(vec![0, 1, 2, 3])),
            (DeviceKind::Cuda, 1, Replicas::Count(1)),
            (DeviceKind::Cpu, 4, Replicas::Count(1)),
        ] {
            let mut config = with(Replicas::Auto);
            config.settle_replicas(device, gpus);
            assert_eq!(config.stage(StageName::Talker).replicas, settled, "{device:?}, {gpus}");
            assert_eq!(config.stage(StageName::Vocoder).replicas, Replicas::Count(1), "not asked for");
        }
    }

    #[test]
    fn a_number_of_replicas_is_for_a_cpu() {
        let config = with(Replicas::Count(2));
        let fit = |config: &Config, device| config.replicas_fit(&StageName::OF_TEXT, device, 2);
        assert_eq!(fit(&config, DeviceKind::Cpu), Ok(()));
        let told = fit(&config, DeviceKind::Cuda).unwrap_err();
        assert!(told.starts_with("stages.talker.replicas: ") && told.contains("[0, 1]"), "{told}");
        assert_eq!(fit(&with(Replicas::On(vec![0, 1])), DeviceKind::Cuda), Ok(()));
        let absent = with(Replicas::On(vec![0, 2]));
        assert_eq!(fit(&absent, DeviceKind::Cpu), Ok(()));
        let told = fit(&absent, DeviceKind::Cuda).unwrap_err();
        assert_eq!(told, "stages.talker.replicas: names GPU 2, and the driver shows 2, counted from 0");
    }

    #[test]
    fn what_is_no_number_of_replicas_is_none() {
        let read = |text: &str| Replicas::read(&text.parse::<toml::Table>().unwrap()["r"]);
        assert_eq!(read("r = 16"), Some(Replicas::Count(16)));
        assert_eq!(read("r = [1]"), Some(Replicas::On(vec![1])));
        assert_eq!(read("r = \"auto\""), Some(Replicas::Auto));
        for wrong in ["0", "17", "-1", "\"all\"", "[]", "[0, 0]", "[64]", "[-1]", "[\"0\"]", "true", "1.5"] {
            assert_eq!(read(&format!("r = {wrong}")), None, "{wrong}");
        }
    }
}
