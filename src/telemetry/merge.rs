//! One exposition out of those of several processes: each family once, with its `# HELP` and `# TYPE`, and no series
//! twice.

use omni_core::ids::StageName;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

#[derive(Default)]
struct Families<'a> {
    order: Vec<&'a str>,
    families: HashMap<&'a str, Family<'a>>,
}

#[derive(Default)]
struct Family<'a> {
    head: Vec<&'a str>,
    samples: Vec<String>,
    series: HashSet<String>,
}

/// The stage of a process, and which replica of it where it has several.
pub type Process = (StageName, Option<usize>);

/// Adds what stage processes expose to what this process exposes. Where both have a series, that of this process
/// counts. A series without the label `stage` gets the label `process`, and those of one of several replicas the label
/// `replica`, which keeps those of several processes apart.
pub fn merged(own: &str, stages: &[(Process, String)]) -> String {
    let mut all = Families::default();
    all.add(own, None);
    for (stage, text) in stages {
        all.add(text, Some(*stage));
    }
    let mut text = String::with_capacity(own.len() * (stages.len() + 1));
    for family in all.order.iter().filter_map(|name| all.families.get(name)) {
        for line in family.head.iter().copied().chain(family.samples.iter().map(String::as_str)) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{line}");
        }
        text.push('\n');
    }
    text
}

impl<'a> Families<'a> {
    fn add(&mut self, text: &'a str, process: Option<Process>) {
        let mut current = "";
        for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
            let Some(comment) = line.strip_prefix("# ") else {
                self.families.entry(current).or_default().sample(line, process);
                continue;
            };
            let mut words = comment.split(' ');
            let (Some("HELP" | "TYPE"), Some(name)) = (words.next(), words.next()) else { continue };
            current = name;
            let family = self.families.entry(name).or_insert_with(|| {
                self.order.push(name);
                Family::default()
            });
            if !family.head.contains(&line) {
                family.head.push(line);
            }
        }
    }
}

impl Family<'_> {
    fn sample(&mut self, line: &str, process: Option<Process>) {
        let Some((series, value)) = line.rsplit_once(' ') else { return };
        let mut series = series.to_owned();
        if let Some((stage, replica)) = process {
            if let Some(replica) = replica {
                series = labelled(&series, "replica", &replica.to_string());
            }
            if !series.contains("stage=\"") {
                series = labelled(&series, "process", stage.as_str());
            }
        }
        let sample = format!("{series} {value}");
        if self.series.insert(series) {
            self.samples.push(sample);
        }
    }
}

fn labelled(series: &str, key: &str, value: &str) -> String {
    match series.split_once('{') {
        Some((name, labels)) => format!("{name}{{{key}=\"{value}\",{labels}"),
        None => format!("{series}{{{key}=\"{value}\"}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "# HELP steps Steps.\n# TYPE steps counter\nsteps{stage=\"thinker\"} 1\nsteps{stage=\"talker\"} 2\n\n\
        # HELP ready Ready.\n# TYPE ready gauge\nready 1\n\n";

    #[test]
    fn alone_it_stays_as_it_is() {
        assert_eq!(merged(OWN, &[]), OWN);
    }

    #[test]
    fn each_family_and_each_series_comes_once() {
        let talker = "# HELP steps Steps.\n# TYPE steps counter\nsteps{stage=\"talker\"} 7\nsteps{stage=\"talker\",a=\"b\"} 3\n\n\
            # HELP memory Memory.\n# TYPE memory gauge\nmemory{use=\"used\"} 5\nmemory 6\n";
        let text = merged(OWN, &[((StageName::Talker, None), talker.to_owned())]);
        let expected = "# HELP steps Steps.\n# TYPE steps counter\nsteps{stage=\"thinker\"} 1\nsteps{stage=\"talker\"} 2\n\
            steps{stage=\"talker\",a=\"b\"} 3\n\n# HELP ready Ready.\n# TYPE ready gauge\nready 1\n\n\
            # HELP memory Memory.\n# TYPE memory gauge\nmemory{process=\"talker\",use=\"used\"} 5\nmemory{process=\"talker\"} 6\n\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn replicas_keep_their_series_apart() {
        let text = "# HELP steps Steps.\n# TYPE steps counter\nsteps{stage=\"talker\"} 7\nmemory 6\n";
        let told = [0, 1].map(|replica| ((StageName::Talker, Some(replica)), text.to_owned()));
        let expected = "# HELP steps Steps.\n# TYPE steps counter\n\
            steps{replica=\"0\",stage=\"talker\"} 7\nmemory{process=\"talker\",replica=\"0\"} 6\n\
            steps{replica=\"1\",stage=\"talker\"} 7\nmemory{process=\"talker\",replica=\"1\"} 6\n\n";
        assert_eq!(merged("", &told), expected);
    }
}
