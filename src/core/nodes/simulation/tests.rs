use super::*;

/// Seeds of a run that says nothing else; `omni-actors simulate --nodes` plays more, and larger ones.
const SEEDS: u64 = 300;

/// Plays a seed; one that fails is shrunk.
fn played(seed: u64, settings: &Settings) -> Report {
    let scenario = Scenario::new(seed, settings);
    play(&scenario).unwrap_or_else(|violation| {
        let (small, last) = shrink(&scenario, violation.clone(), 500);
        panic!("{violation}\nshrunk: {last}\n{}", small.lines().join("\n"));
    })
}

#[test]
fn whatever_breaks_each_client_hears_each_unit_once_and_nothing_is_left() {
    let mut all = Report::default();
    for seed in 0..SEEDS {
        let report = played(seed, &Settings::small(seed));
        all.units += report.units;
        all.readmitted += report.readmitted;
        all.asked_again += report.asked_again;
        all.stale += report.stale;
        all.refusals += report.refusals;
        all.stay += report.stay;
        report.faults.into_iter().for_each(|(kind, count)| *all.faults.entry(kind).or_default() += count);
    }
    println!("{all:?}");
    // Without these the run would show nothing.
    assert!(all.faults.len() == 6 && all.stay > SEEDS / 10 && all.readmitted > SEEDS && all.stale > SEEDS, "{all:?}");
    assert!(all.asked_again > 0 && all.refusals > SEEDS && all.units > 100 * SEEDS, "{all:?}");
}

#[test]
fn a_seed_plays_the_same_again() {
    for seed in 0..10 {
        let scenario = Scenario::new(seed, &Settings::small(seed));
        assert_eq!(play(&scenario), play(&scenario));
    }
}

#[test]
fn a_thousand_nodes_share_the_load_of_gateways_that_do_not_know_of_each_other() {
    let settings = Settings::large(1000, 60);
    let calm = played(1, &Settings { faults: 0, ..settings.clone() }).balance;
    println!("{calm:?}");
    // Sixty times sixteen.
    assert!(calm.used == 960.0 && calm.gateways == 1.0, "{calm:?}");
    assert!(calm.p99 < 1.6 * calm.mean && calm.most < 3.0 * calm.mean, "{calm:?}");

    let stormy = played(1, &settings);
    println!("{stormy:?}");
    assert!(stormy.readmitted > 500, "{stormy:?}");
    assert!(stormy.balance.used > 0.9 * stormy.balance.nodes, "{stormy:?}");
}

#[test]
fn gateways_that_may_have_all_nodes_together_each_get_their_part() {
    for (gateways, max_nodes) in [(1, 1), (2, 1), (2, 2), (2, 8), (3, 5), (6, 2), (12, 4)] {
        let nodes = gateways * max_nodes;
        let settings = Settings { max_nodes, faults: 0, ..Settings::large(nodes, gateways) };
        let balance = played(3, &settings).balance;
        assert!(balance.used == nodes as f64 && balance.gateways == 1.0, "{gateways} of {max_nodes}: {balance:?}");
    }
}

#[test]
fn gateways_that_could_share_nodes_do_not_meet_while_there_are_others() {
    let settings = Settings { shares: 8, faults: 0, ..Settings::large(200, 12) };
    let balance = played(2, &settings).balance;
    assert!(balance.used == 192.0 && balance.gateways == 1.0, "{balance:?}");
}
