//! Decisions in a terminal: a bar for each option.

use console::{Style, measure_text_width, truncate_str};

use crate::decision::{ResultRow, entropy_in_bits};

use super::fail::safe;

/// How wide, and with which colours, to draw.
#[derive(Clone, Copy, Debug)]
pub struct Canvas {
    pub width: usize,
    pub colour: bool,
}

impl Canvas {
    /// Of stdout: 80 columns and no colour when it is no terminal; NO_COLOR is obeyed.
    pub fn of_stdout() -> Canvas {
        let term = console::Term::stdout();
        let width = term.size_checked().map_or(80, |(_, columns)| usize::from(columns));
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Canvas { width: width.clamp(30, 120), colour: term.is_term() && console::colors_enabled() && !refused }
    }

    fn paint(&self, style: Style, text: &str) -> String {
        style.force_styling(self.colour).apply_to(text).to_string()
    }
}

/// A bar of `share` (0 to 1) in `width` columns, drawn in eighths.
pub fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * (width * 8) as f64).round() as usize;
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    format!("{}{part}", "█".repeat(eighths / 8))
}

/// One line for each option: mark, id, bar, percentage, description. The best one is marked `>`, so that colour is never
/// the only sign.
pub fn bars(labels: &[(String, String)], shares: &[f64], canvas: Canvas) -> String {
    let top = shares.iter().enumerate().fold(0, |best, (i, share)| if *share > shares[best] { i } else { best });
    let longest = labels.iter().map(|(id, _)| measure_text_width(id)).max().unwrap_or(0);
    let id_width = longest.min(canvas.width / 4);
    // Mark 4, gap 2, percentage 7, gap 2.
    let rest = canvas.width.saturating_sub(id_width + 15);
    // The descriptions get the room they need, but never more than two thirds of it.
    let needed = labels.iter().map(|(_, description)| measure_text_width(description)).max().unwrap_or(0);
    let bar_width = rest.saturating_sub(needed).max(rest / 3).clamp(6, 32);
    let text_width = rest.saturating_sub(bar_width);
    let mut out = String::new();
    for (i, ((id, description), share)) in labels.iter().zip(shares).enumerate() {
        let best = i == top;
        let id = truncate_str(id, id_width, "…");
        let id_gap = " ".repeat(id_width - measure_text_width(&id));
        let drawn = bar(*share, bar_width);
        let bar_gap = " ".repeat(bar_width - measure_text_width(&drawn));
        let style = if best { Style::new().green().bold() } else { Style::new() };
        let line = format!(
            "  {} {}{id_gap}  {}{bar_gap} {:>6}  {}",
            if best { ">" } else { " " },
            canvas.paint(style.clone(), &id),
            canvas.paint(if best { Style::new().green() } else { Style::new().cyan() }, &drawn),
            percent(*share),
            truncate_str(description, text_width, "…"),
        );
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The bars of a decision. With several orders of the options: the combined ones, and what each order says by itself.
pub fn decision(labels: &[(String, String)], result: &ResultRow, canvas: Canvas) -> String {
    let (Some(combined), Some(orders)) = (&result.combined, &result.orderings) else {
        return bars(labels, &result.probabilities, canvas);
    };
    let mut out = bars(labels, &combined.probabilities, canvas);
    out.push_str(&format!(
        "  combined from {} of {} orders of the options: {} has it on top in {}, probabilities move by up to {}\n",
        combined.read,
        combined.of,
        safe(&combined.top),
        percent(combined.agreement),
        percent(combined.spread)
    ));
    for order in orders {
        let shares = order.order.iter().zip(&order.probabilities).map(|(id, p)| format!("{} {}", safe(id), percent(*p)));
        out.push_str(&truncate_str(&format!("    {}", shares.collect::<Vec<_>>().join(", ")), canvas.width, "…"));
        out.push('\n');
    }
    out
}

/// Option letter, id and description of a row, fit for a terminal.
pub fn labels(row: &crate::decision::Row) -> Vec<(String, String)> {
    row.options().iter().map(|option| (safe(&option.id), safe(&option.description))).collect()
}

/// 0.0 % to 100.0 %, never rounded up to certainty or down to nothing.
pub fn percent(share: f64) -> String {
    let shown = share * 100.0;
    if shown < 0.05 && share > 0.0 {
        "<0.1%".to_owned()
    } else if shown >= 99.95 && share < 1.0 {
        ">99.9%".to_owned()
    } else {
        format!("{shown:.1}%")
    }
}

/// Seconds in the unit that suits them.
pub fn seconds(value: f64) -> String {
    if value < 0.0995 {
        format!("{:.1} ms", value * 1000.0)
    } else if value < 9.995 {
        format!("{value:.2} s")
    } else {
        format!("{value:.0} s")
    }
}

/// How quick something is: so many a second or, where it is slower than one, how long each takes.
pub fn pace(per_second: f64) -> String {
    match per_second >= 0.995 || per_second <= 0.0 {
        true => format!("{per_second:.1} a second"),
        false => format!("{} each", seconds(1.0 / per_second)),
    }
}

/// What is read, for a line that is shown meanwhile: so many tokens each.
pub fn reading(prompts: impl Iterator<Item = usize>) -> String {
    let (count, tokens) = prompts.fold((0, 0), |(count, tokens), more| (count + 1, tokens + more));
    match (count, tokens) {
        (1, 1) => "reading 1 token".to_owned(),
        (1, _) => format!("reading {tokens} tokens"),
        _ => format!("reading {count} prompts of {tokens} tokens in all"),
    }
}

/// The lines under the bars: how sure, and where the numbers come from.
pub fn footer(result: &ResultRow, canvas: Canvas) -> String {
    let read = crate::decision::readout(&result.option_logits);
    let mut out = String::new();
    if let Ok(read) = read {
        out.push_str(&format!("  margin {}, entropy {}", percent(read.margin), entropy_in_bits(read.entropy, result.probabilities.len())));
        if let Some(mass) = result.allowed_token_mass {
            out.push_str(&format!(", {} of all next-token probability on these letters", percent(mass)));
        }
        out.push('\n');
    }
    let config = &result.serving_config;
    let source = format!(
        "  {} tokens, {} forward, {} in all; {}, {} on {} ({})",
        result.input_tokens,
        seconds(result.forward_seconds),
        seconds(result.total_seconds),
        safe(&result.model.file),
        config.precision,
        safe(&config.adapter),
        config.backend,
    );
    out.push_str(&canvas.paint(Style::new().dim(), &source));
    out.push('\n');
    for fallback in &config.fallbacks {
        out.push_str(&format!("  note: {}\n", safe(fallback)));
    }
    if config.system_text != "own turn" {
        out.push_str("  note: this model's template has no system turn; the instructions stand in front of the user text\n");
    }
    out.push_str(&canvas.paint(Style::new().dim(), "  These are conditional option scores, not calibrated probabilities of being right."));
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(width: usize) -> String {
        let labels = [
            ("billing", "Billing: charges, refunds and invoices"),
            ("tech\u{6f22}\u{5b57}", "Technical support: errors and outages of every kind"),
        ];
        let labels = labels.map(|(a, b)| (a.to_owned(), b.to_owned()));
        bars(&labels, &[0.25, 0.75], Canvas { width, colour: false })
    }

    #[test]
    fn bars_fit_the_width() {
        for width in 30..=120 {
            for line in sample(width).lines() {
                assert!(measure_text_width(line) <= width, "{width}: {line:?}");
            }
        }
        let lines = sample(80);
        assert!(lines.lines().nth(1).unwrap().starts_with("  > tech漢字"), "{lines}");
        assert!(lines.contains(" 25.0%  Billing"), "{lines}");
    }

    #[test]
    fn slow_work_is_told_by_the_piece() {
        assert_eq!(pace(12.34), "12.3 a second");
        assert_eq!(pace(0.04), "25 s each");
        assert_eq!(pace(0.0), "0.0 a second");
    }

    #[test]
    fn what_is_read_is_counted() {
        let told = [vec![1], vec![157], vec![150, 152]].map(|lengths| reading(lengths.into_iter()));
        assert_eq!(told, ["reading 1 token", "reading 157 tokens", "reading 2 prompts of 302 tokens in all"]);
    }

    #[test]
    fn bars_are_proportional() {
        assert_eq!((bar(1.0, 4).as_str(), bar(0.0, 4).as_str(), bar(0.5, 4).as_str()), ("████", "", "██"));
        assert_eq!(bar(1.0 / 32.0, 4), "▏");
    }

    #[test]
    fn numbers_stay_honest() {
        let shown: Vec<_> = [0.0, 1e-9, 0.5, 0.99999, 1.0].map(percent).to_vec();
        assert_eq!(shown, ["0.0%", "<0.1%", "50.0%", ">99.9%", "100.0%"]);
        assert_eq!([0.0123, 0.25, 31.7].map(seconds), ["12.3 ms", "0.25 s", "32 s"].map(str::to_owned));
    }

    #[test]
    fn colour_is_only_where_it_is_wanted() {
        let labels = vec![("a".to_owned(), "x".to_owned())];
        assert!(!bars(&labels, &[1.0], Canvas { width: 80, colour: false }).contains('\u{1b}'));
        assert!(bars(&labels, &[1.0], Canvas { width: 80, colour: true }).contains('\u{1b}'));
    }
}
