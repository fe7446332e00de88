//! Numbers in words: bytes, times, shares.

/// Bytes in decimal units: `98.4 MB`.
pub fn bytes(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e8 => format!("{:.0} MB", b / 1e6),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.0} kB", b / 1e3),
        b => format!("{b:.0} bytes"),
    }
}

/// Binary limits of a GPU, which come in powers of two: `128 MiB`.
pub fn limit(bytes: f64) -> String {
    match bytes {
        b if b >= 1024.0 * 1024.0 * 1024.0 => format!("{} GiB", trim(b / (1024.0 * 1024.0 * 1024.0))),
        b if b >= 1024.0 * 1024.0 => format!("{} MiB", trim(b / (1024.0 * 1024.0))),
        b => format!("{} KiB", trim(b / 1024.0)),
    }
}

fn trim(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_string)
}

/// A time: `312 ms`, `4.21 s`, `2 min 5 s`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.0095 => format!("{:.1} ms", s * 1e3),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 10.0 => format!("{s:.2} s"),
        s if s < 100.0 => format!("{s:.1} s"),
        s => format!("{} min {} s", (s / 60.0).floor(), (s % 60.0).floor()),
    }
}

/// A time that is still to come: `a moment`, `40 s`, `5 min`, `2 h`.
pub fn rough(seconds: f64) -> String {
    match seconds {
        s if s < 5.0 => "a moment".into(),
        s if s < 55.0 => format!("{:.0} s", (s / 5.0).ceil() * 5.0),
        s if s < 5400.0 => format!("{:.0} min", (s / 60.0).ceil()),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// An estimate, with the one digit that it deserves: `40 ms`, `0.3 s`, `8 s`.
pub fn about(seconds: f64) -> String {
    match seconds {
        s if s < 0.095 => format!("{:.0} ms", (s * 100.0).round() * 10.0),
        s if s < 0.95 => format!("{s:.1} s"),
        s if s < 90.0 => format!("{s:.0} s"),
        s => format!("{:.0} min", s / 60.0),
    }
}

/// A probability: `97.3 %`; never a false 0 or 100.
pub fn share(p: f64) -> String {
    match p * 100.0 {
        p if p > 0.0 && p < 0.05 => "<0.1 %".into(),
        p if (99.95..100.0).contains(&p) => ">99.9 %".into(),
        p => format!("{p:.1} %"),
    }
}

/// How many times: `41`, `5.2`.
pub fn times(ratio: f64) -> String {
    if ratio >= 10.0 { format!("{ratio:.0}") } else { format!("{ratio:.1}") }
}

/// `1 token`, `2 tokens`.
pub fn plural(n: u32, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{} {one}s", thousands(n)) }
}

/// `151 936`, with narrow spaces.
pub fn thousands(n: u32) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}
