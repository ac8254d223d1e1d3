//! What is slow, broken or switched off.

use omni_actors::core::ids::StageName;
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use std::time::Duration;

/// One way to run the engine.
pub struct Condition {
    pub key: &'static str,
    pub what: &'static str,
    /// Keys of the config, over those of the command line.
    pub set: &'static [(&'static str, &'static str)],
    pub trouble: Trouble,
    /// Whether its cadence is promised to be that of the base.
    pub promised: bool,
}

/// What happens on purpose.
#[derive(Clone, Copy, PartialEq)]
pub enum Trouble {
    None,
    /// Milliseconds before each turn of the talker's packager.
    SlowPackager(u64),
    /// The vocoder's connector takes nothing from the talker for this many milliseconds, once, a quarter into the decode.
    Stall(u64),
    /// More clients, who have stopped reading.
    Sleepers,
}

/// What everything is compared with.
pub const BASE: &str = "all";

const fn slow(key: &'static str, what: &'static str, ms: u64) -> Condition {
    Condition { key, what, set: &[], trouble: Trouble::SlowPackager(ms), promised: true }
}

const fn off(key: &'static str, what: &'static str, set: &'static [(&'static str, &'static str)]) -> Condition {
    Condition { key, what, set, trouble: Trouble::None, promised: false }
}

const fn serial(key: &'static str, what: &'static str, trouble: Trouble) -> Condition {
    const SET: &[(&str, &str)] = &[
        ("transfer.early_handoff", "false"),
        ("transfer.async_d2h", "false"),
        ("transfer.async_h2d", "false"),
        ("stages.thinker.run_ahead", "1"),
        ("stages.talker.run_ahead", "1"),
    ];
    Condition { key, what, set: SET, trouble, promised: false }
}

pub const CONDITIONS: &[Condition] = &[
    off(BASE, "everything on", &[]),
    off("again", "everything on, again", &[]),
    slow("packager-5", "packager slowed by 5 ms", 5),
    slow("packager-20", "packager slowed by 20 ms", 20),
    slow("packager-50", "packager slowed by 50 ms", 50),
    Condition {
        key: "stall",
        what: "a connector stalled for 2 s",
        set: &[],
        trouble: Trouble::Stall(2000),
        promised: true,
    },
    Condition {
        key: "sleepers",
        what: "clients that stop reading",
        set: &[],
        trouble: Trouble::Sleepers,
        promised: true,
    },
    off("no-early-handoff", "early hand-off off", &[("transfer.early_handoff", "false")]),
    off("no-async-d2h", "async copies to the host off", &[("transfer.async_d2h", "false")]),
    off("no-async-h2d", "async copies to the device off", &[("transfer.async_h2d", "false")]),
    off("no-device-handover", "hand-over on the device off", &[("transfer.device_handover", "false")]),
    off("no-zero-copy", "zero-copy frames off", &[("transfer.transport", "wire"), ("transfer.zero_copy", "false")]),
    off("wire", "wire frames", &[("transfer.transport", "wire")]),
    off("shm", "shared memory", &[("transfer.transport", "shm")]),
    off("process", "vocoder in a process of its own", &[("stages.vocoder.placement", "process")]),
    serial("serialized", "serialized order", Trouble::None),
    serial("serialized-5", "serialized, packager + 5 ms", Trouble::SlowPackager(5)),
    serial("serialized-50", "serialized, packager + 50 ms", Trouble::SlowPackager(50)),
];

impl Trouble {
    /// As rules of a fault plan, for `sequences` requests of `frames` frames after `before` payloads.
    pub fn faults(self, sequences: u32, frames: u32, before: u32) -> Vec<FaultRule> {
        let rule = |stage, point, ms, nth, times| {
            let kind = FaultKind::Delay(Duration::from_millis(ms));
            vec![FaultRule::new(stage, point, kind).nth(nth).times(times)]
        };
        match self {
            Trouble::None | Trouble::Sleepers => Vec::new(),
            Trouble::SlowPackager(ms) => rule(StageName::Talker, FaultPoint::Packager, ms, 1, u64::MAX),
            Trouble::Stall(ms) => {
                rule(StageName::Vocoder, FaultPoint::Connector, ms, u64::from(before + sequences * frames / 4), 1)
            }
        }
    }
}
