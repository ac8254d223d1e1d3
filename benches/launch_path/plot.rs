//! The ratios as a picture: one line per condition, one mark per number of sequences.

use crate::conditions::BASE;
use crate::report::Report;
use std::fmt::Write;

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 290.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 96.0;
const LANE: f64 = 30.0;

const STYLE: &str = "
.bg{fill:#fcfcfd}.t{fill:#1d2939}.s{fill:#667085;font-size:12px}.grid{stroke:#e4e7ec}.one{stroke:#475467;stroke-dasharray:4 4}.lane{fill:#f2f4f7}
.spread{stroke-width:2}.m0{fill:#2f6db5;stroke:#2f6db5}.m1{fill:#2f8f4e;stroke:#2f8f4e}.m2{fill:#b4690e;stroke:#b4690e}.m3{fill:#7a4fb5;stroke:#7a4fb5}
@media (prefers-color-scheme:dark){.bg{fill:#0d1117}.t{fill:#e6edf3}.s{fill:#9aa4b2}.grid{stroke:#2a313c}.one{stroke:#9aa4b2}.lane{fill:#161b22}.m0{fill:#58a0ee;stroke:#58a0ee}.m1{fill:#56c77a;stroke:#56c77a}.m2{fill:#e0a04a;stroke:#e0a04a}.m3{fill:#b38ef0;stroke:#b38ef0}}
";

/// An SVG that is readable on light and dark pages.
pub fn draw(report: &Report) -> String {
    let lanes: Vec<_> =
        report.runs.iter().flat_map(|run| run.lines.first().map(|_| &run.lines)).take(1).flatten().collect();
    let lanes: Vec<_> = lanes.into_iter().filter(|line| line.condition.key != BASE).collect();
    let ratios = || report.runs.iter().flat_map(|run| run.lines.iter().flat_map(|line| line.ratio));
    let (low, high) = (ratios().fold(0.9, f64::min), ratios().fold(1.1, f64::max));
    let (from, to) = ((low * 0.97).log2(), (high * 1.1).log2());
    let x = |ratio: f64| LEFT + (WIDTH - LEFT - RIGHT) * (ratio.log2() - from) / (to - from);
    let height = TOP + LANE * lanes.len() as f64 + 44.0;
    let title = format!(
        "Cadence of decode steps, as a multiple of the cadence with everything on: {} on {}",
        report.model, report.device
    );
    let mut svg = String::new();
    let mut put = |text: String| {
        svg.push_str(&text);
        svg.push('\n');
    };
    put(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"ui-sans-serif, system-ui, sans-serif\" font-size=\"14\" role=\"img\" aria-labelledby=\"t d\">"
    ));
    put(format!("<title id=\"t\">{}</title>", escape(&title)));
    put(format!("<desc id=\"d\">{}</desc>", escape(&describe(report))));
    put(format!("<style>{STYLE}</style>\n<rect class=\"bg\" width=\"{WIDTH}\" height=\"{height}\"/>"));
    put(format!("<text class=\"t\" x=\"24\" y=\"32\" font-weight=\"600\">{}</text>", escape(&title)));
    put(format!(
        "<text class=\"s\" x=\"24\" y=\"52\">{} frames, {} rounds in turns; a mark is the median, a line goes from the best round to the worst</text>",
        report.frames, report.rounds
    ));
    for (at, run) in report.runs.iter().enumerate() {
        let at_x = 24.0 + 110.0 * at as f64;
        put(format!("<circle class=\"m{}\" cx=\"{}\" cy=\"72\" r=\"5\"/>", at % 4, at_x + 5.0));
        let sequences = if run.sequences == 1 { "sequence" } else { "sequences" };
        put(format!("<text class=\"s\" x=\"{}\" y=\"76\">{} {sequences}</text>", at_x + 16.0, run.sequences));
    }
    let bottom = TOP + LANE * lanes.len() as f64;
    for lane in (0..lanes.len()).step_by(2) {
        let y = TOP + LANE * lane as f64;
        put(format!("<rect class=\"lane\" x=\"0\" y=\"{y}\" width=\"{WIDTH}\" height=\"{LANE}\"/>"));
    }
    for tick in [0.25, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0] {
        if (from..to).contains(&f64::log2(tick)) {
            let class = if tick == 1.0 { "one" } else { "grid" };
            put(format!("<path class=\"{class}\" d=\"M{0:.1} {TOP}V{bottom}\"/>", x(tick)));
            put(format!(
                "<text class=\"s\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>",
                x(tick),
                bottom + 18.0
            ));
        }
    }
    for (lane, named) in lanes.iter().enumerate() {
        let middle = TOP + LANE * (lane as f64 + 0.5);
        put(format!("<text class=\"t\" x=\"24\" y=\"{}\">{}</text>", middle + 5.0, escape(named.condition.what)));
        for (at, run) in report.runs.iter().enumerate() {
            let Some(line) = run.lines.iter().find(|line| line.condition.key == named.condition.key) else { continue };
            let [median, least, most] = line.ratio.map(x);
            let y = middle + (at as f64 - (report.runs.len() - 1) as f64 / 2.0) * 7.0;
            put(format!("<path class=\"spread m{}\" d=\"M{least:.1} {y}H{most:.1}\"/>", at % 4));
            put(format!("<circle class=\"m{}\" cx=\"{median:.1}\" cy=\"{y}\" r=\"4\"/>", at % 4));
        }
    }
    put("</svg>".into());
    svg
}

/// The picture in words.
fn describe(report: &Report) -> String {
    let mut text = String::new();
    for run in &report.runs {
        let _ = write!(text, "{} sequences: ", run.sequences);
        let lines = run.lines.iter().filter(|line| line.condition.key != BASE);
        let lines: Vec<String> = lines.map(|line| format!("{} {:.2}", line.condition.what, line.ratio[0])).collect();
        let _ = write!(text, "{}. ", lines.join(", "));
    }
    text.trim_end().to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
