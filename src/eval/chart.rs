//! The two charts of an evaluation as SVG text: the reliability diagram and the risk-coverage curve.
//!
//! Colours are CSS classes (`c0` to `c4`, `axis`, `grid`, `words`), so that the page draws both themes with its own style sheet;
//! [`standalone`] adds a style of its own for a saved file.

use std::fmt::Write as _;

use super::metrics::{BINS, Bin, Point};

/// Colours and marks there are; later series begin anew.
const KINDS: usize = 5;

const WIDTH: f64 = 400.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const PLOT: f64 = 236.0;
/// From the plot's lower edge to the first line of the legend.
const FOOT: f64 = 58.0;
const LINE: f64 = 20.0;

/// Both axes of a chart: values from 0 to `x` and from 0 to `y`.
struct Frame {
    x: f64,
    y: f64,
    svg: String,
}

impl Frame {
    fn new(title: &str, summary: &str, names: &[&str], (x_title, y_title): (&str, &str), (x, y): (f64, f64)) -> Self {
        let height = TOP + PLOT + FOOT + LINE * names.len() as f64 - 6.0;
        let mut svg = String::new();
        let _ = write!(
            svg,
            r#"<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height}" role="img"><title>{}</title><desc>{}</desc>"#,
            escape(title),
            escape(summary)
        );
        let mut frame = Self { x, y, svg };
        for i in 0..=4 {
            let (share, step) = (f64::from(i) / 4.0, f64::from(i) * PLOT / 4.0);
            let (right, line, text) = (WIDTH - RIGHT, TOP + PLOT - step, TOP + PLOT - step + 4.5);
            let kind = if i == 0 { "axis" } else { "grid" };
            let _ = write!(frame.svg, r#"<path class="{kind}" d="M{LEFT} {line}H{right}"/>"#);
            let _ =
                write!(frame.svg, r#"<text class="words" x="{}" y="{text}" text-anchor="end">{}</text>"#, LEFT - 8.0, percent(share * y));
            let at = frame.at(share * x, 0.0).0;
            let anchor = if i == 4 { "end" } else { "middle" };
            let at = if i == 4 { right } else { at };
            let _ = write!(
                frame.svg,
                r#"<text class="words" x="{at}" y="{}" text-anchor="{anchor}">{}</text>"#,
                TOP + PLOT + 18.0,
                percent(share * x)
            );
        }
        let _ = write!(frame.svg, r#"<text class="words" x="0" y="14">{}</text>"#, escape(y_title));
        let _ = write!(
            frame.svg,
            r#"<text class="words" x="{}" y="{}" text-anchor="end">{}</text>"#,
            WIDTH - RIGHT,
            TOP + PLOT + 38.0,
            escape(x_title)
        );
        for (i, name) in names.iter().enumerate() {
            let y = TOP + PLOT + FOOT + LINE * i as f64;
            let _ = write!(frame.svg, r#"<path class="line c{}" d="M{LEFT} {}h22"/>"#, i % KINDS, y - 4.5);
            frame.mark(i, LEFT + 11.0, y - 4.5, 4.0, "");
            let _ = write!(frame.svg, r#"<text class="words name" x="{}" y="{y}">{}</text>"#, LEFT + 30.0, escape(&short(name)));
        }
        frame
    }

    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (round(LEFT + x / self.x * (WIDTH - LEFT - RIGHT)), round(TOP + PLOT - y / self.y * PLOT))
    }

    fn line(&mut self, series: usize, points: &[(f64, f64)]) {
        let mut path = String::new();
        for (i, &(x, y)) in points.iter().enumerate() {
            let (x, y) = self.at(x, y);
            let _ = write!(path, "{}{x} {y}", if i == 0 { "M" } else { "L" });
        }
        let _ = write!(self.svg, r#"<path class="line c{}" d="{path}"/>"#, series % KINDS);
    }

    /// A mark whose shape tells the series apart without its colour, with a text for pointing at it.
    fn mark(&mut self, series: usize, x: f64, y: f64, r: f64, words: &str) {
        let kind = series % KINDS;
        let (x, y, r) = (round(x), round(y), round(r));
        let (wide, half) = (round(1.3 * r), round(0.9 * r));
        let shape = match kind {
            0 => format!(r#"<circle cx="{x}" cy="{y}" r="{r}""#),
            1 => format!(r#"<path d="M{} {}h{w}v{w}h-{w}z""#, round(x - half), round(y - half), w = round(2.0 * half)),
            2 => format!(r#"<path d="M{x} {}l{wide} {wide}l-{wide} {wide}l-{wide} -{wide}z""#, round(y - wide)),
            3 => format!(r#"<path d="M{x} {}l{wide} {}h-{}z""#, round(y - wide), round(2.1 * r), round(2.0 * wide)),
            _ => format!(r#"<path d="M{x} {}l{wide} -{}h-{}z""#, round(y + wide), round(2.1 * r), round(2.0 * wide)),
        };
        let title = if words.is_empty() { String::new() } else { format!("<title>{}</title>", escape(words)) };
        let open = shape.split_once(' ').map_or("path", |(open, _)| &open[1..]);
        let _ = write!(self.svg, r#"{shape} class="mark c{kind}">{title}</{open}>"#);
    }

    fn end(mut self) -> String {
        self.svg.push_str("</svg>");
        self.svg
    }
}

/// How often answers of each confidence are right. On the dotted line a model is as sure as it is right; the larger a mark, the more
/// answers it stands for.
pub fn reliability(series: &[(&str, [Bin; BINS])]) -> String {
    let words = |(name, bins): &(&str, [Bin; BINS])| {
        let bins = bins.iter().filter(|bin| bin.rows > 0);
        let bins: Vec<String> = bins.map(|bin| format!("{} at {}", percent(bin.accuracy), percent(bin.confidence))).collect();
        format!("{name}: {}", bins.join(", "))
    };
    let summary = series.iter().map(words).collect::<Vec<_>>().join(". ");
    let names: Vec<&str> = series.iter().map(|(name, _)| *name).collect();
    let mut frame = Frame::new("Reliability", &summary, &names, ("Confidence of the choice", "Right"), (1.0, 1.0));
    let ((x0, y0), (x1, y1)) = (frame.at(0.0, 0.0), frame.at(1.0, 1.0));
    let _ = write!(frame.svg, r#"<path class="ideal" d="M{x0} {y0}L{x1} {y1}"/>"#);
    for (i, (_, bins)) in series.iter().enumerate() {
        let points: Vec<(f64, f64)> = bins.iter().filter(|bin| bin.rows > 0).map(|bin| (bin.confidence, bin.accuracy)).collect();
        frame.line(i, &points);
    }
    for (i, (name, bins)) in series.iter().enumerate() {
        let all: usize = bins.iter().map(|bin| bin.rows).sum();
        for bin in bins.iter().filter(|bin| bin.rows > 0) {
            let (x, y) = frame.at(bin.confidence, bin.accuracy);
            let words = format!("{name}: {} rows, confidence {}, right {}", bin.rows, percent(bin.confidence), percent(bin.accuracy));
            frame.mark(i, x, y, 2.5 + 5.5 * (bin.rows as f64 / all as f64).sqrt(), &words);
        }
    }
    frame.end()
}

/// The error rate when only the surest share of the rows is answered.
pub fn coverage(series: &[(&str, Vec<Point>)]) -> String {
    let highest = series.iter().flat_map(|(_, points)| points).map(|point| point.risk).fold(0.0, f64::max);
    // Four even steps of whole percent.
    let top = [0.04, 0.08, 0.2, 0.4, 0.6, 0.8].into_iter().find(|top| highest <= *top).unwrap_or(1.0);
    let half = |points: &[Point]| points.iter().rfind(|point| point.coverage <= 0.5).copied();
    let words = |(name, points): &(&str, Vec<Point>)| {
        let all = points.last().map_or(String::new(), |point| format!("{} wrong over {}", percent(point.risk), percent(point.coverage)));
        let half = half(points).map_or(String::new(), |point| format!(", {} over the surest half", percent(point.risk)));
        format!("{name}: {all}{half}")
    };
    let summary = series.iter().map(words).collect::<Vec<_>>().join(". ");
    let names: Vec<&str> = series.iter().map(|(name, _)| *name).collect();
    let mut frame = Frame::new("Risk and coverage", &summary, &names, ("Rows answered, the surest first", "Wrong"), (1.0, top));
    for (i, (_, points)) in series.iter().enumerate() {
        frame.line(i, &points.iter().map(|point| (point.coverage, point.risk)).collect::<Vec<_>>());
    }
    for (i, (name, points)) in series.iter().enumerate() {
        for point in [half(points), points.last().copied()].into_iter().flatten() {
            let (x, y) = frame.at(point.coverage, point.risk);
            let words = format!(
                "{name}: {} of the rows, confidence {} and more, {} wrong",
                percent(point.coverage),
                percent(point.confidence),
                percent(point.risk)
            );
            frame.mark(i, x, y, 4.5, &words);
        }
    }
    frame.end()
}

/// The same chart as a file of its own, for both themes.
pub fn standalone(chart: &str) -> String {
    const STYLE: &str = "<style>\
        svg{background:#fff;font:12px system-ui,sans-serif;--c0:#0e6b5e;--c1:#94501a;--c2:#2457b3;--c3:#8a2f78;--c4:#5f5d57;--ink:#1d1d1b;--soft:#5f5d57;--line:#e6e3dc;--edge:#96938a;--bg:#fff}\
        @media(prefers-color-scheme:dark){svg{background:#1c1e1b;--c0:#62c7b4;--c1:#e2a568;--c2:#8ab4f8;--c3:#e39ad3;--c4:#a9a79f;--ink:#ecebe6;--soft:#a9a79f;--line:#2e312c;--edge:#757870;--bg:#1c1e1b}}\
        .words{fill:var(--soft)}.name{fill:var(--ink)}.grid,.axis,.ideal,.line{fill:none}.grid{stroke:var(--line)}.axis,.ideal{stroke:var(--edge)}.ideal{stroke-dasharray:2 4}.line{stroke-width:2;stroke-linejoin:round}.mark{stroke:var(--bg);stroke-width:1}\
        .line.c0{stroke:var(--c0)}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}.line.c4{stroke:var(--c4)}\
        .mark.c0{fill:var(--c0)}.mark.c1{fill:var(--c1)}.mark.c2{fill:var(--c2)}.mark.c3{fill:var(--c3)}.mark.c4{fill:var(--c4)}\
        </style>";
    match chart.split_once('>') {
        Some((open, rest)) => format!("{open}>{STYLE}{rest}"),
        None => chart.to_owned(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Two digits are more than a screen shows.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// What fits into a line of the legend.
fn short(name: &str) -> String {
    if name.chars().count() <= 44 { name.to_owned() } else { name.chars().take(43).chain(['…']).collect() }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::metrics::{Case, coverage as curve, reliability as bins};
    use super::*;

    fn cases() -> Vec<Case> {
        let case =
            |label, p: f64| Case { label, options: vec!["a".into(), "b".into()], probabilities: Some(vec![p, 1.0 - p]), ..Case::default() };
        vec![case(0, 0.95), case(1, 0.75), case(0, 0.75), case(1, 0.55)]
    }

    /// Every opened element is closed, in order; no text escapes its element.
    fn well_formed(svg: &str) {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1).map(|rest| rest.split_once('>').expect("a tag ends").0) {
            let name = |tag: &str| tag.split(' ').next().unwrap_or_default().to_owned();
            if let Some(closing) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(closing), "{svg}");
            } else if !tag.ends_with('/') {
                open.push(name(tag));
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn marks_stand_where_the_numbers_say() {
        let svg = reliability(&[("a <b> & \"c\"", bins(&cases()))]);
        well_formed(&svg);
        // Confidence 0.95, right: x = 50 + 0.95 * 336, y = 34. Confidence 0.75, half right: x = 302, y = 34 + 118.
        assert!(svg.contains(r#"<circle cx="369.2" cy="34""#), "{svg}");
        assert!(svg.contains(r#"<circle cx="302" cy="152""#), "{svg}");
        assert!(svg.contains("a &lt;b&gt; &amp; &quot;c&quot;: 2 rows, confidence 75 %, right 50 %"), "{svg}");
        let svg = coverage(&[("one", curve(&cases())), ("two", curve(&cases()[..1]))]);
        well_formed(&svg);
        // Half of all rows wrong at full coverage; the axis ends at 60 %.
        assert!(svg.contains(r#"<circle cx="386" cy="73.33""#), "{svg}");
        assert!(svg.contains("one: 50 % wrong over 100 %, 25 % over the surest half. two: 0 % wrong over 100 %"), "{svg}");
        well_formed(&standalone(&svg));
    }

    #[test]
    fn six_series_and_none() {
        let all: Vec<(&str, [Bin; BINS])> = ["1", "2", "3", "4", "5", "6"].map(|name| (name, bins(&cases()))).to_vec();
        well_formed(&reliability(&all));
        well_formed(&reliability(&[]));
        well_formed(&coverage(&[("empty", Vec::new())]));
        assert_eq!(short(&"ä".repeat(50)).chars().count(), 44);
    }
}
