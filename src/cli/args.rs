//! The command line's grammar and its help, written to teach.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::decision::Orderings;

use super::bench::BenchArgs;
use super::fail::Failure;
use super::schedule::Mode;

use super::models::{HubArgs, ModelChoice, ModelsArgs};
use super::pull::PullArgs;

/// Larger budgets than any model has; keeps sizes computed from it far from overflow.
const MOST_TOKENS: i64 = 1 << 20;

/// A token id; spaces around it are fine, as in lists that were copied from JSON.
fn token_id(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| "not a token id; ids are whole numbers separated by commas, like 9707,11,1879".to_owned())
}

const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  something outside failed (a full disk)
    2  bad arguments or input
    3  the model file cannot be used
    4  the GPU, its driver or its memory
    5  done, but some rows were refused (--skip-invalid)
  130  interrupted; what was finished is kept

Data goes to stdout, messages to stderr. `semif COMMAND --help` shows examples.";

/// Semantic ifs from open models: a state, a question and 2 to 20 described options go in, a probability for each
/// option comes out, read from the logits of one forward pass. Nothing is generated and nothing is parsed.
#[derive(Debug, Parser)]
#[command(name = "semif", version, after_help = EXIT_CODES, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Ask(AskArgs),
    Score(ScoreArgs),
    Compare(CompareArgs),
    Logits(LogitsArgs),
    Generate(GenerateArgs),
    Tokenize(TokenizeArgs),
    Inspect(InspectArgs),
    Models(ModelsArgs),
    Pull(PullArgs),
    Doctor(DoctorArgs),
    Bench(BenchArgs),
}

/// Precision tier of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    /// 32-bit floats throughout
    Exact,
    /// 8-bit activations
    Fast,
    /// 16-bit matrix units
    Tensor,
    /// The fastest that this adapter runs correctly
    Auto,
}

impl PrecisionArg {
    /// The engine's name of the tier.
    pub fn name(self) -> &'static str {
        match self {
            PrecisionArg::Exact => "exact",
            PrecisionArg::Fast => "fast",
            PrecisionArg::Tensor => "tensor",
            PrecisionArg::Auto => "auto",
        }
    }
}

impl ModelArgs {
    /// The tier asked for.
    pub fn tier(&self) -> PrecisionArg {
        self.precision.unwrap_or(PrecisionArg::Auto)
    }
}

/// The model and how it is run: the same for every command that runs one.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    #[command(flatten)]
    pub choice: ModelChoice,

    /// Precision tier; a tier that this program or this adapter lacks is refused, never replaced in silence
    /// [default: auto; exact for logits]
    #[arg(long, value_name = "TIER")]
    pub precision: Option<PrecisionArg>,

    /// GPU to use: a part of its name, or its number in `semif doctor` [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub adapter: Option<String>,

    /// Use at most this much GPU memory: bytes, or a number with kB, MB, GB, KiB, MiB or GiB [default: what the adapter has]
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    pub gpu_memory: Option<u64>,

    /// GPU memory for states that are kept after they were read, such as 512MB; 0 keeps none [default: twice what the longest
    /// prompt takes, as far as there is room]
    #[arg(long, value_name = "SIZE", value_parser = cache_size)]
    pub cache: Option<u64>,

    /// Longest prompt in tokens; a longer one is refused, never cut
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=MOST_TOKENS))]
    pub max_tokens: u32,

    /// At the end, list the GPU time of every kernel on stderr (needs an adapter with timestamps)
    #[arg(long)]
    pub profile: bool,
}

/// As [`memory_size`], and 0.
fn cache_size(text: &str) -> Result<u64, String> {
    if text.trim() == "0" { Ok(0) } else { memory_size(text) }
}

/// `4GB`, `512 MiB`, `1000000`: bytes.
fn memory_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" | "bytes" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        other => return Err(format!("{other:?} is no unit; use kB, MB, GB, KiB, MiB or GiB")),
    };
    match number.parse::<f64>() {
        Ok(number) if number * factor >= 1.0 => Ok((number * factor) as u64),
        _ => Err("expected a size such as 4GB or 512MiB".into()),
    }
}

/// Orders of the options that are read besides the given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderingsArg {
    /// Every option stands first once
    Rotations,
    /// Every order; at most 4 options
    All,
    /// As given and back to front
    Reverse,
    /// Rotations, until the rest cannot change the outcome
    Adaptive,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct OrderingsArgs {
    /// Read the options in several orders and combine them, so that a lean towards a letter goes away
    #[arg(long, value_name = "WHICH")]
    pub orderings: Option<OrderingsArg>,

    /// With --orderings adaptive: how sure to be that the rest would not change the top option; 1 reads all
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub confidence: f64,
}

impl OrderingsArgs {
    /// # Errors
    /// Exit code 2: a confidence that is none.
    pub fn orderings(&self) -> Result<Option<Orderings>, Failure> {
        if !(self.confidence > 0.5 && self.confidence <= 1.0) {
            return Err(Failure::input(format!("--confidence {} is not above 0.5 and at most 1", self.confidence)));
        }
        Ok(self.orderings.map(|which| match which {
            OrderingsArg::Rotations => Orderings::Rotations,
            OrderingsArg::All => Orderings::All,
            OrderingsArg::Reverse => Orderings::Reverse,
            OrderingsArg::Adaptive => Orderings::Adaptive { confidence: self.confidence },
        }))
    }
}

/// What is known, given on the command line.
#[derive(Clone, Debug, Args)]
pub struct StateArgs {
    /// What is known: text, or @FILE to read a text file
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, required_unless_present = "state_json", conflicts_with = "state_json")]
    pub state: Option<String>,

    /// What is known as JSON (string, object or array), or @FILE; the model sees its structure
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub state_json: Option<String>,

    /// Wording to use instead of this project's: {"version", "system", "keys"}
    #[arg(long, value_name = "FILE")]
    pub prompt: Option<PathBuf>,
}

/// One decision, given on the command line.
#[derive(Clone, Debug, Args)]
pub struct CaseArgs {
    #[command(flatten)]
    pub state: StateArgs,

    /// The question to settle, or @FILE
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub question: String,

    /// A possible answer, 2 to 20 times. The id (up to the first `=`) names it in the result, the model reads the
    /// description only
    #[arg(long = "option", value_name = "ID=DESCRIPTION", allow_hyphen_values = true, required = true)]
    pub options: Vec<String>,
}

/// Decide one case and show a bar for each option.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  semif ask --gguf qwen.gguf --state 'I was charged twice.' --question 'Which team handles this?' \\
      --option 'billing=Billing: charges and refunds' --option 'tech=Technical support: errors and outages'
  semif ask --gguf qwen.gguf --state @mail.txt --question 'Is this phishing?' \\
      --option 'yes=Yes, it tries to steal a password' --option 'no=No, it is a normal mail' --json
  semif ask --gguf qwen.gguf --state-json '{\"amount\": 64, \"limit\": 200}' --question 'Is approval needed?' \\
      --option 'yes=Yes' --option 'no=No'

A text that starts with @ and is no file: write @@ for the first @.
Margin: how far the best option is ahead of the second. Entropy: how undecided the model is, from 0 (sure) to all bits (no idea).
The numbers are conditional option scores, not calibrated probabilities of being right.")]
pub struct AskArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub case: CaseArgs,

    #[command(flatten)]
    pub orderings: OrderingsArgs,

    /// Also compute the share of the whole vocabulary's probability that the answer letters hold
    #[arg(long)]
    pub mass: bool,

    /// Print the result row as JSON instead
    #[arg(long)]
    pub json: bool,
}

/// Decide every row of a JSON Lines file.
#[derive(Debug, Args)]
#[command(after_help = "\
Input, one JSON object a line:
  {\"id\": \"r1\", \"state\": \"I was charged twice.\", \"question\": \"Which team?\",
   \"options\": [{\"id\": \"billing\", \"description\": \"Billing\"}, {\"id\": \"tech\", \"description\": \"Technical support\"}]}
  state: text, object or array. 2 to 20 options. Other keys (label, family, ...) are allowed; the model never sees them.

Examples:
  semif score --gguf qwen.gguf --input rows.jsonl --output decided.jsonl
  semif score --gguf qwen.gguf --input rows.jsonl --output decided.jsonl --resume     go on after Ctrl-C or a crash
  semif score --gguf qwen.gguf --input rows.jsonl --output decided.jsonl --orderings rotations
  cat rows.jsonl | semif score --model qwen3-0.6b --input - --output decided.jsonl

All rows are checked, and all prompts measured, before the model goes to the GPU; every fault is listed with its line and
id. The output is created, never overwritten, and each row is in it as soon as it and all rows before it are decided; what
is decided earlier waits in OUTPUT.waiting. Ctrl-C stops after the current step; a second Ctrl-C stops at once.")]
pub struct ScoreArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Rows to decide, JSON Lines; - reads stdin
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,

    /// Where the result rows go, in input order; must not exist yet (or see --resume)
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,

    /// Wording to use instead of this project's: {"version", "system", "keys"}
    #[arg(long, value_name = "FILE")]
    pub prompt: Option<PathBuf>,

    /// How rows with an equal state are read; changes times only, never a bit of a result
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub mode: Mode,

    #[command(flatten)]
    pub orderings: OrderingsArgs,

    /// Also compute allowed_token_mass and full_vocab_argmax_id (one pass over the whole output matrix)
    #[arg(long)]
    pub mass: bool,

    /// Go on with an output that was interrupted: its rows are checked against this input, model and prompt
    #[arg(long)]
    pub resume: bool,

    /// Score the good rows; each bad one gets {"id", "error"} in its place, and the exit code is 5
    #[arg(long)]
    pub skip_invalid: bool,
}

/// What generation is asked to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BaselineArg {
    /// One question: an object with a probability for each option
    #[default]
    Distribution,
    /// Many criteria: a compact array of "yes" and "no"
    Array,
    /// Many criteria: an object with an answer and a confidence for each
    Verbose,
}

/// Decide both ways, by readout and by writing JSON, and time them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  semif compare --gguf qwen.gguf --state 'I was charged twice.' --question 'Which team handles this?' \\
      --option 'billing=Billing: charges and refunds' --option 'tech=Technical support: errors and outages'
  semif compare --gguf qwen.gguf --state @mail.txt --baseline array \\
      --criterion 'Is it about money?' --criterion 'Does it ask for a password?' --criterion 'Is it urgent?'

Both paths read the same state on the same loaded model, after a short warm-up. What is written counts only if a program
could use it as it stands:
  distribution  maps every \"<letter>: <description>\" to a number in [0, 1]; the sum is within 0.02 of 1; 512 tokens
  array         exactly one \"yes\" or \"no\" for each criterion, in order; 128 tokens
  verbose       for each key an answer and a confidence in [0, 1]; 1024 tokens
With array and verbose the readout decides every criterion between Yes and No, all of them on one shared state.")]
pub struct CompareArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub state: StateArgs,

    /// What is written
    #[arg(long, value_name = "WHAT", default_value = "distribution")]
    pub baseline: BaselineArg,

    /// The question to settle, or @FILE
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, required_unless_present = "criteria", conflicts_with = "criteria")]
    pub question: Option<String>,

    /// A possible answer, 2 to 20 times: its id and what the model reads
    #[arg(long = "option", value_name = "ID=DESCRIPTION", allow_hyphen_values = true, requires = "question")]
    pub options: Vec<String>,

    /// A yes-or-no question about the state, or @FILE; once for each, with --baseline array or verbose
    #[arg(long = "criterion", value_name = "TEXT", allow_hyphen_values = true)]
    pub criteria: Vec<String>,

    /// Print both results as one JSON object instead
    #[arg(long)]
    pub json: bool,
}

/// Print last-position logits of token sequences, one JSON line for each.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  semif logits --gguf qwen.gguf --tokens 9707,11,1879 --labels 32,33
  semif logits --gguf qwen.gguf --tokens-file sequences.json --full > logits.jsonl     sequences.json: [[1, 2, 3], [4, 5]]

Each line: {\"n\": tokens, \"labels\": [logit, ...] in the order asked, \"top\": [[id, logit], ...], \"lse\": log-sum-exp over the
vocabulary, \"argmax\": id, \"logits\": [all of them] with --full}. Numbers are f32 in shortest form.")]
pub struct LogitsArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub tokens: TokensArgs,

    /// Token ids whose logits are wanted, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id)]
    pub labels: Vec<u32>,

    /// How many of the highest logits to list
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,

    /// Print the logits of the whole vocabulary too
    #[arg(long)]
    pub full: bool,
}

/// Where token sequences come from.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct TokensArgs {
    /// One sequence of token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id)]
    pub tokens: Vec<u32>,

    /// A JSON list of lists of token ids
    #[arg(long, value_name = "FILE")]
    pub tokens_file: Option<PathBuf>,
}

/// Generate greedily from tokens or text.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  semif generate --gguf qwen.gguf --text 'The capital of France is' --max-new 16
  semif generate --gguf qwen.gguf --tokens 785,6722,315 --max-new 24 --json

The text is continued as it stands, no chat template is put around it. Generation ends at an end-of-text token of the
model or after --max-new tokens.")]
pub struct GenerateArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub prompt: GeneratePrompt,

    /// Recognise control tokens such as <|im_start|> in --text
    #[arg(long, conflicts_with = "tokens")]
    pub control: bool,

    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_new: u32,

    /// Go on after an end-of-text token
    #[arg(long)]
    pub ignore_eos: bool,

    /// Print ids, text and times as JSON, which is also what a pipe or a file gets
    #[arg(long)]
    pub json: bool,
}

/// What `generate` continues.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct GeneratePrompt {
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id)]
    pub tokens: Vec<u32>,

    /// Text, or @FILE; may start with a hyphen
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub text: Option<String>,
}

/// Print the token ids of a text as JSON.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  semif tokenize --gguf qwen.gguf --text 'Hello, world'
  semif tokenize --gguf qwen.gguf --text '<|im_start|>user' --control
  semif tokenize --gguf qwen.gguf --text @page.txt --plain

Works with any file that has a tokenizer, whatever its architecture; no GPU is needed. By default user-defined tokens
are recognised and control tokens are text; --control recognises both, --plain neither (as in decisions).")]
pub struct TokenizeArgs {
    #[command(flatten)]
    pub choice: ModelChoice,

    /// The text, or @FILE; may start with a hyphen
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub text: String,

    /// Recognise control tokens such as <|im_start|>
    #[arg(long, conflicts_with = "plain")]
    pub control: bool,

    /// Recognise nothing special at all, as decisions do with the text of rows
    #[arg(long)]
    pub plain: bool,
}

/// Show what a model file contains and needs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  semif inspect qwen.gguf
  semif inspect qwen.gguf --json

Reads the header only; no GPU is needed. A model named by its id is fetched whole first, if it is not here.")]
pub struct InspectArgs {
    /// Model file, or the id of a model in `semif models`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    #[command(flatten)]
    pub hub: HubArgs,

    /// Prompt budget that the memory estimate counts with
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=MOST_TOKENS))]
    pub max_tokens: u32,

    /// Print as JSON, with every tensor and metadata key
    #[arg(long)]
    pub json: bool,
}

/// Show the GPU adapters, what they can run, and test every kernel.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  semif doctor
  semif doctor --adapter nvidia --json

Each kernel runs on the adapter against known results. Exit code 0: all right; 4: no adapter, or a kernel is wrong.")]
pub struct DoctorArgs {
    /// Adapter to test: a part of its name, or its number in the list [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub adapter: Option<String>,

    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn texts_may_start_with_a_hyphen() {
        let Command::Tokenize(args) = Cli::try_parse_from(["semif", "tokenize", "--gguf", "x", "--text", "--control"]).unwrap().command
        else {
            panic!("another command");
        };
        assert_eq!((args.text.as_str(), args.control), ("--control", false));
        let Command::Generate(args) = Cli::try_parse_from(["semif", "generate", "--gguf", "x", "--text", "-1"]).unwrap().command else {
            panic!("another command");
        };
        assert_eq!(args.prompt.text.as_deref(), Some("-1"));
    }

    #[test]
    fn memory_sizes() {
        for (text, bytes) in [("1000", 1000), ("4GB", 4_000_000_000), ("1.5 gb", 1_500_000_000), ("512MiB", 512 << 20), ("2KiB", 2048)] {
            assert_eq!(memory_size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GB", "0", "-1GB", "4 apples", "1.2.3", "1e9"] {
            assert!(memory_size(bad).is_err(), "{bad}");
        }
        assert_eq!((cache_size("0"), cache_size("512MB")), (Ok(0), Ok(512_000_000)));
        assert!(cache_size("-1").is_err() && cache_size("none").is_err());
    }

    #[test]
    fn alternatives_exclude_each_other() {
        for bad in [
            "semif logits --gguf x",
            "semif logits --tokens 1",
            "semif logits --gguf x --model y --tokens 1",
            "semif logits --model x --offline --mirror https://y --tokens 1",
            "semif pull",
            "semif pull x --connections 0",
            "semif logits --gguf x --tokens 1 --tokens-file y",
            "semif generate --gguf x --tokens 1 --text y",
            "semif generate --gguf x --tokens 1 --control",
            "semif tokenize --gguf x --text y --plain --control",
            "semif ask --gguf x --question q --option a=b",
            "semif ask --gguf x --state s --state-json s --question q --option a=b",
            "semif score --gguf x --input y --output z --max-tokens 0",
            "semif score --gguf x --input y --output z --precision half",
            "semif logits --gguf x --tokens 1,-2",
            "semif logits --gguf x --tokens 4294967296",
        ] {
            assert!(Cli::try_parse_from(bad.split(' ')).is_err(), "{bad}");
        }
    }
}
