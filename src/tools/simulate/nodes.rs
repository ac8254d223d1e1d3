//! `omni-actors simulate --nodes`: many gateways and many nodes, without what is inside of them.

use super::{SHRINK_RUNS, SimulateArgs};
use anyhow::bail;
use omni_core::nodes::simulation::{Balance, Balancer, Scenario, Settings, play, shrink};
use std::time::{Duration, Instant};

/// Plays seeds with so many nodes. It fails with the first one that does.
pub(super) fn execute(args: &SimulateArgs, nodes: usize) -> anyhow::Result<()> {
    let gateways = args.gateways.map_or((nodes / 16).max(1), |gateways| gateways as usize);
    let mut settings =
        Settings { shares: args.shares, balancer: args.balancer.into(), ..Settings::large(nodes, gateways) };
    settings.max_nodes = args.max_nodes;
    let begun = Instant::now();
    let until = args.minutes.map(|minutes| Duration::from_secs_f64(minutes.max(0.0) * 60.0));
    for seed in args.seed.. {
        let more = until.map_or(seed - args.seed < args.seeds.unwrap_or(1), |until| begun.elapsed() < until);
        if !more {
            break;
        }
        for faults in [0, settings.faults] {
            let scenario = Scenario::new(seed, &Settings { faults, ..settings.clone() });
            let violation = match play(&scenario) {
                Ok(report) => {
                    crate::outln!(
                        "seed {seed}, {faults} faults: {} requests, {} units compared, {} sequences admitted again, {} \
                         late units dropped, {} clients asked again, {} questions to nodes, {} refused",
                        report.requests,
                        report.units,
                        report.readmitted,
                        report.stale,
                        report.asked_again,
                        report.asks,
                        report.refusals
                    );
                    print(&report.balance);
                    continue;
                }
                Err(violation) => violation,
            };
            crate::outln!("\n{violation}\nshrinking {} requests and faults ...", scenario.members());
            let (small, last) = shrink(&scenario, violation.clone(), SHRINK_RUNS);
            crate::outln!("{} suffice: {last}", small.members());
            small.lines().iter().for_each(|line| crate::outln!("  {line}"));
            bail!("{violation}");
        }
    }
    Ok(())
}

fn print(balance: &Balance) {
    let Balance { nodes, used, gateways, mean, p99, most, .. } = balance;
    crate::outln!(
        "  {used:.0} of {nodes:.0} nodes used, by {gateways:.1} gateways at most; sequences of a node: mean {mean:.2}, \
         p99 {p99:.1}, most {most:.1}"
    );
}

/// How requests come to gateways.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Front {
    /// To any gateway that is ready
    Random,
    /// To one after the other
    Turns,
    /// To the one with the fewest open requests
    Fewest,
}

impl From<Front> for Balancer {
    fn from(front: Front) -> Balancer {
        match front {
            Front::Random => Balancer::Random,
            Front::Turns => Balancer::Turns,
            Front::Fewest => Balancer::Fewest,
        }
    }
}
