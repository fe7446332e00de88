//! Chat templates: Jinja from the model file, rendered as Hugging Face's `apply_chat_template` does.
//!
//! A template is a program from outside. Its steps, its nesting and its output are bounded; it can reach nothing but the
//! messages.
//!
//! One hole is known. minijinja counts steps, not what a step costs, and offers no hook for `+`, `~` or the writing and
//! comparing of lists. Forty steps of `s ~ s`, or of `[a, a]` with `a | string` at the end, fill the memory or take forever.
//! Less fuel does not help: honest templates take hundreds of steps, forty are enough. Nor does looking for loops: macros,
//! captures and filters (`join`, `replace`, `tojson`) double as well. Such a file ends the program, or the page's worker, and
//! nothing else; it comes from whoever made the weights.

use std::io;

use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;

use super::TextError;
use super::python;
use super::source::adapted;

/// Instructions of one rendering. The templates of the ladder take 150 to 230 for two turns. As
/// a step can nest a value by one, and values are printed, compared and dropped recursively, this bounds the stack too.
const FUEL: u64 = 2_500;
/// Nested macro calls; a thread of a browser has 1 MiB of stack.
const RECURSION: usize = 32;
/// Bytes of template source; the largest known are about 20 kB. (minijinja panics on a call with 65536 arguments, which do
/// not fit into this.)
const MAX_SOURCE: usize = 128 << 10;
/// Bytes of output beyond a few times the messages' own.
const OUTPUT_SLACK: usize = 1 << 20;

/// One turn of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// The text of the turn.
    pub content: String,
}

impl Message {
    /// What the model is told about its task.
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: "system", content: content.into() }
    }

    /// What is asked.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: "user", content: content.into() }
    }
}

/// A model's chat template, parsed.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
    source: String,
}

/// The name of the only template; it has no ending, so nothing is escaped.
const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Parses a template. `bos` and `eos` are the texts that it may write as `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`].
    pub fn new(source: &str, bos: Option<String>, eos: Option<String>) -> Result<Self, TextError> {
        if source.len() > MAX_SOURCE {
            let found = source.len();
            return Err(TextError::TemplateSyntax(format!("it has {found} bytes, more than {MAX_SOURCE}")));
        }
        let mut env = Environment::new();
        // The options of Hugging Face's environment; a single line break at the end is dropped, as Jinja does by default.
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_keep_trailing_newline(false);
        env.set_fuel(Some(FUEL));
        env.set_recursion_limit(RECURSION);
        python::install(&mut env);
        let adapted = adapted(source)?;
        env.add_template_owned(NAME, adapted).map_err(|error| TextError::TemplateSyntax(described(&error)))?;
        Ok(Self { env, bos, eos, source: source.into() })
    }

    /// The template as the file has it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The texts that a rendering may contain beside the messages.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        [Some(&self.source), self.bos.as_ref(), self.eos.as_ref()].into_iter().flatten().map(String::as_str)
    }

    /// Renders a chat up to where the answer starts, thinking off.
    ///
    /// # Errors
    /// [`TextError::TemplateRefused`] when the template raises an exception, [`TextError::TemplateLimit`] when it does
    /// far too much, [`TextError::TemplateFailed`] for everything else.
    pub fn render(&self, messages: &[Message]) -> Result<String, TextError> {
        let template = self.env.get_template(NAME).map_err(|error| failed(&error, false))?;
        let given: usize = messages.iter().map(|message| message.content.len()).sum();
        let mut output = Bounded { bytes: Vec::new(), left: 4 * given + OUTPUT_SLACK, full: false };
        let rendered = template.render_captured_to(
            context! {
                messages => Value::from_serialize(messages),
                add_generation_prompt => true,
                enable_thinking => false,
                // Hugging Face passes these two always, as none; and no token's text where the model has none.
                tools => (),
                documents => (),
                bos_token => self.bos.as_deref().map_or(Value::UNDEFINED, Value::from),
                eos_token => self.eos.as_deref().map_or(Value::UNDEFINED, Value::from),
            },
            &mut output,
        );
        match rendered {
            Ok(_) => String::from_utf8(output.bytes).map_err(|error| TextError::TemplateFailed(error.to_string())),
            Err(error) => Err(failed(&error, output.full)),
        }
    }

    /// Steps that a rendering of these messages takes, of [`FUEL`].
    #[cfg(test)]
    fn steps(&self, messages: &[Message]) -> u64 {
        let ctx = context! { messages => Value::from_serialize(messages), add_generation_prompt => true, enable_thinking => false };
        let captured = self.env.get_template(NAME).unwrap().render_captured(ctx).unwrap();
        captured.state().fuel_levels().unwrap().0
    }
}

/// A writer that takes so many bytes and no more.
struct Bounded {
    bytes: Vec<u8>,
    left: usize,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.left -= bytes.len();
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failed(error: &Error, full: bool) -> TextError {
    if full {
        return TextError::TemplateLimit("its output is far longer than the messages".into());
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(this) = cause {
        if let Some(python::Raised(message)) = this.downcast_ref() {
            return TextError::TemplateRefused(message.clone());
        }
        if this.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return TextError::TemplateLimit(format!("it takes more than {FUEL} steps"));
        }
        cause = this.source();
    }
    TextError::TemplateFailed(described(error))
}

/// The error with the line it happened on, without the source text that the long form prints.
fn described(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(this) = cause {
        text += &format!(": {this}");
        cause = this.source();
    }
    text.truncate(text.char_indices().nth(400).map_or(text.len(), |(at, _)| at));
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample;

    use super::*;

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::new(source, Some("<s>".into()), None).unwrap()
    }

    fn render(source: &str) -> Result<String, TextError> {
        template(source).render(&[Message::system("be brief"), Message::user("  hi </think> \n")])
    }

    #[track_caller]
    fn is(source: &str, expected: &str) {
        assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
    }

    #[test]
    fn options_and_variables_are_hugging_faces() {
        // trim_blocks and lstrip_blocks, one line break dropped at the end.
        is("a\n  {% if true %}\nb\n  {% endif %}\nc\n\n", "a\nb\nc\n");
        is("{{ bos_token }}|{{ eos_token }}|{{ add_generation_prompt }}|{{ enable_thinking is false }}", "<s>||True|True");
        is("{{ tools is none }} {{ tools is defined }} {{ documents is none }} {{ custom is undefined }}", "True True True True");
        is("{{ '<a>&\"' }}", "<a>&\"");
    }

    #[test]
    fn what_real_templates_use() {
        is(
            "{% set ns = namespace(last=0, n=messages|length) %}{% for m in messages[::-1] %}\
             {% if m.role == 'user' and not (m.content.startswith('<t>') and m.content.endswith('</t>')) %}\
             {% set ns.last = (messages|length - 1) - loop.index0 %}{% endif %}{% endfor %}{{ ns.last }}/{{ ns.n }}",
            "1/2",
        );
        is(
            "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.previtem.role if loop.previtem }}\
             {{ loop.nextitem.role if loop.nextitem is defined }};{% endfor %}",
            "0TrueFalseuser;1FalseTruesystem;",
        );
        is(
            "{% macro show(c, n=false) %}{% if c is string %}{{ c }}{% elif c is iterable and c is not mapping %}list{% endif %}{% endmacro %}\
            {{ show(messages[0].content) | trim }} {{ show([1]) }}",
            "be brief list",
        );
        is(
            "{{ messages[1].content.split('</think>')[-1].lstrip('\\n') }}|{{ messages[1].content.split('</think>')[0].strip() }}",
            " \n|hi",
        );
        is("{{ messages[0]['content'].replace('be', 'is').rstrip('f') }}", "is brie");
        is("{% for k, v in messages[0] | items %}{{ k }}={{ v }} {% endfor %}", "role=system content=be brief ");
        is("{% for k, v in messages[0].items() %}{{ k }} {% endfor %}", "role content ");
        is("{{ [3, 1] | min }} {{ 3 | string ~ '!' }} {{ '<' | safe }} {{ range(1, 3) | length }}", "1 3! < 2");
        is("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02");
        is("{% set x %}a{{ 'b' }}{% endset %}{{ x + 'c' }}{{ messages is sequence }}{{ messages[0] is mapping }}", "abcTrueTrue");
        is("{% generation %}x{% endgeneration %}{%- generation -%} y {%- endgeneration -%}", "xy");
        is(
            "{% if messages[0]['role'] == 'system' %}{% set sys = messages[0]['content']|trim %}{% set messages = messages[1:] %}\
             {% else %}{% set sys = '' %}{% endif %}{% if not date is defined %}{% if strftime_now is defined %}{% set date = strftime_now('%Y') %}\
             {% endif %}{% endif %}{{ sys }} {{ messages | length }} {{ date | length }} {{ messages[-1]['role'] }}",
            "be brief 1 4 user",
        );
        is(
            "{% for m in messages | rejectattr('role', 'equalto', 'tool') %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\
             {{ m['role'].upper() + ':' }}{% endif %}{% endfor %}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
            "SYSTEM:USER:1",
        );
        is("{{ ''[::-1] }}{{ 'ab'[::-1] }}{{ [][::-1] }}{{ messages[::-1][0].role }}{{ range(3)[::-1] }}", "ba[]user[2, 1, 0]");
        is("{{ 'prefix-x'.removeprefix('prefix-') }}{{ 'aXbX'.count('X') }}{{ ''.count('') }}", "x21");
    }

    #[test]
    fn refusals_and_failures_are_told_apart() {
        assert_eq!(render("{{ raise_exception('no') }}"), Err(TextError::TemplateRefused("no".into())));
        for source in
            ["{{ a.b.c }}", "{{ 'x' | nofilter }}", "{{ nofunction() }}", "{% include 'x' %}", "{{ messages[0].content.format(1) }}"]
        {
            assert!(matches!(render(source), Err(TextError::TemplateFailed(_))), "{source}: {:?}", render(source));
        }
        for source in ["{% if %}", "{{", "{% unknown %}", "{% for x in y %}"] {
            assert!(matches!(ChatTemplate::new(source, None, None), Err(TextError::TemplateSyntax(_))), "{source}");
        }
        assert!(ChatTemplate::new(&" ".repeat(MAX_SOURCE + 1), None, None).is_err());
    }

    #[test]
    fn hostile_templates_are_stopped() {
        let stopped = [
            "{% for i in range(99999) %}{{ i }}{% endfor %}",
            "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
            "{% set s = 'x' | string %}{% for i in range(25) %}{% set s = s %}{% endfor %}{% for i in range(99999) %}{{ s }}{% endfor %}",
            "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(18) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
            "{% set ns = namespace(a=[]) %}{% for i in range(99999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}",
            "{{ range(999999999999) }}",
            "{{ '%999999999d' | format(1) }}",
            "{{ 'x' | indent(999999999) }}",
        ];
        // On a thread with a small stack: a browser's has 1 MiB.
        let run = move || {
            for source in stopped {
                let error = render(source).unwrap_err();
                assert!(matches!(error, TextError::TemplateLimit(_) | TextError::TemplateFailed(_)), "{source}: {error}");
            }
            let nested = format!("{}1{}", "(".repeat(5000), ")".repeat(5000));
            assert!(ChatTemplate::new(&format!("{{{{ {nested} }}}}"), None, None).is_err());
            let deep = "{% set ns = namespace(a=[]) %}{% for i in range(1200) %}{% set ns.a = [ns.a] %}{% endfor %}";
            let arguments = format!("{{{{ f({}1) }}}}", "1,".repeat(65_535));
            assert!(ChatTemplate::new(&arguments, None, None).is_err());
            assert_eq!(render(&"\n".repeat(100_000)).map(|text| text.len()), Ok(99_999));
            for tail in ["{{ ns.a }}", "{{ ns.a | tojson }}", "{{ ns.a == ns.a }}", "{{ ns.a | string }}", ""] {
                let _ = render(&format!("{deep}{tail}"));
            }
        };
        std::thread::Builder::new().stack_size(1 << 20).spawn(run).unwrap().join().unwrap();
    }

    /// Expressions of everything that minijinja, its Python methods and this room offer.
    fn expression() -> impl Strategy<Value = String> {
        const FILTERS: &str = "abs attr bool capitalize default dictsort e escape first float groupby int items join last length lines \
            list lower map max min reject rejectattr replace reverse round safe select selectattr sort split string sum title tojson \
            trim unique upper urlencode batch chain format indent pprint slice zip";
        const METHODS: &str = "capitalize count endswith find format get isalnum isascii isdigit islower isspace items join keys lower \
            lstrip removeprefix removesuffix replace rfind rstrip split splitlines startswith strip title upper values __reversed__";
        const TESTS: &str = "boolean defined divisibleby endingwith eq even false filter float in integer iterable lower lt mapping none \
            number odd safe sameas sequence startingwith string test true undefined upper";
        const OPERATORS: &str = "+ - * / // % ** ~ == != < >= and or in";
        let one_of = |words: &'static str| sample::select(words.split_whitespace().collect::<Vec<_>>());
        let atom = sample::select(vec![
            "messages",
            "m",
            "m.content",
            "m.role",
            "''",
            "'é\\u0000'",
            "'a,b\\n'",
            "[]",
            "{}",
            "[1, 'a', none, [2.5]]",
            "{'a': 1.5, 'b': 'x'}",
            "0",
            "1",
            "-1",
            "3",
            "9223372036854775807",
            "-9223372036854775808",
            "1e308",
            "none",
            "true",
            "nothing",
            "namespace(a=1)",
            "range(3)",
            "range(5, -5, -2)",
            "range(1, 1)",
            "dict(a=1)",
            "debug()",
            "joiner()",
            "cycler(1)",
            "loop",
            "self",
            "raise_exception",
            "strftime_now('%Y%-%')",
        ]);
        let arguments = |inner: BoxedStrategy<String>| {
            prop_oneof![
                3 => Just(String::new()),
                3 => inner.clone(),
                1 => inner.clone().prop_map(|value| format!("attribute={value}")),
                1 => (inner.clone(), inner).prop_map(|(a, b)| format!("{a}, {b}")),
            ]
        };
        atom.prop_map(String::from).prop_recursive(5, 24, 3, move |inner| {
            let inner = inner.boxed();
            prop_oneof![
                (inner.clone(), one_of(FILTERS), arguments(inner.clone())).prop_map(|(e, f, a)| format!("({e}) | {f}({a})")),
                (inner.clone(), one_of(METHODS), arguments(inner.clone())).prop_map(|(e, f, a)| format!("({e}).{f}({a})")),
                (inner.clone(), one_of(TESTS), inner.clone()).prop_map(|(e, t, a)| format!("({e}) is {t}({a})")),
                (inner.clone(), one_of(TESTS)).prop_map(|(e, t)| format!("({e}) is {t}")),
                (inner.clone(), one_of(OPERATORS), inner.clone()).prop_map(|(a, o, b)| format!("(({a}) {o} ({b}))")),
                (inner.clone(), inner.clone()).prop_map(|(e, i)| format!("({e})[{i}]")),
                (inner.clone(), inner.clone(), inner.clone()).prop_map(|(e, a, b)| format!("({e})[{a}:{b}]")),
                (inner.clone(), one_of("[::-1] [::2] [:] [1:] [:-1] .a .index0 .previtem")).prop_map(|(e, s)| format!("({e}){s}")),
                inner.clone().prop_map(|e| format!("-({e})")),
                inner.clone().prop_map(|e| format!("[{e}, {e}]")),
                inner.prop_map(|e| format!("{{{e}: {e}}}")),
            ]
        })
    }

    fn statements() -> impl Strategy<Value = String> {
        let one = (expression(), expression(), 0..10).prop_map(|(a, b, kind)| match kind {
            0 | 1 => format!("{{{{ {a} }}}}"),
            2 => format!("{{% for m in {a} %}}{{{{ {b} }}}}{{% endfor %}}"),
            3 => format!("{{% for a, b in {a} recursive %}}{{{{ loop({b}) }}}}{{% else %}}{{{{ {b} }}}}{{% endfor %}}"),
            4 => format!("{{% if {a} %}}{{{{ {b} }}}}{{% endif %}}"),
            5 => format!("{{% set m = {a} %}}"),
            6 => format!("{{% set m %}}{{{{ {a} }}}}{{% endset %}}"),
            7 => format!("{{% macro f(m={a}) %}}{{{{ {b} }}}}{{{{ caller() if caller }}}}{{% endmacro %}}{{{{ f() }}}}{{{{ f({b}) }}}}"),
            8 => format!("{{% filter replace({a}, {b}) %}}{{{{ {b} }}}}{{% endfilter %}}"),
            _ => format!("{{% with m = {a} %}}{{% generation %}}{{{{ {b} }}}}{{% endgeneration %}}{{% endwith %}}"),
        });
        proptest::collection::vec(one, 1..4).prop_map(|statements| statements.concat())
    }

    proptest! {
        /// Any template is rendered or refused, never a panic.
        #[test]
        fn any_template(source in statements()) {
            if let Ok(template) = ChatTemplate::new(&source, None, None) {
                let _ = template.render(&[Message::system("be brief"), Message::user("hi </think>")]);
            }
        }
    }

    #[test]
    fn an_honest_template_is_far_from_the_limits() {
        let source = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}";
        let steps = template(source).steps(&[Message::system("s"), Message::user("u")]);
        assert!(steps < FUEL / 20, "{steps}");
        let long = "x".repeat(3 << 20);
        assert_eq!(template("{{ messages[0].content }}").render(&[Message::user(long.clone())]), Ok(long));
    }
}
