//! Chat templates: a conversation as the text that the model was trained on.
//!
//! The model file's own `tokenizer.chat_template` where there is one, else the template of the
//! family whose special tokens the vocabulary holds. A template comes from outside: its size, its
//! steps, the memory it takes and its depth are bounded, and what it does wrong is a message.

use super::failure::{Failure, Outcome};
use super::text::Vocabulary;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Bytes of the longest template accepted; those in use have about 10 KiB.
const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Steps of a template; also bounds its memory to about 64 bytes each.
const FUEL: u64 = 4_000_000;
const DEPTH_MAX: usize = 200;

const CHATML: &str = "\
{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}";

const LLAMA3: &str = "\
{{- bos_token -}}
{%- for m in messages -%}
{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content|trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif -%}";

const GEMMA: &str = "\
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{%- set ns.system = m.content|trim + '\\n\\n' -%}
{%- else -%}
{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
{{- ns.system + m.content|trim + '<end_of_turn>\\n' }}
{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif -%}";

const EXAONE: &str = "\
{%- for m in messages -%}
{{ '[|' + m.role + '|]' + ('' if m.role != 'user' else '\\n') + m.content }}
{{- '\\n' if m.role == 'user' else '[|endofturn|]\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '[|assistant|]' }}{% endif -%}";

const PHI3: &str = "\
{%- for m in messages -%}
{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif -%}";

const ZEPHYR: &str = "\
{%- for m in messages -%}
{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif -%}";

/// For models that know no turns at all.
const PLAIN: &str = "\
{%- for m in messages -%}
{{ m.role|capitalize + ': ' + m.content + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif -%}";

/// The first family all of whose tokens the vocabulary holds.
const FAMILIES: [(&[&str], &str); 6] = [
    (&["<|im_start|>", "<|im_end|>"], CHATML),
    (&["<|start_header_id|>", "<|eot_id|>"], LLAMA3),
    (&["<start_of_turn>", "<end_of_turn>"], GEMMA),
    (&["[|user|]", "[|endofturn|]"], EXAONE),
    (&["<|user|>", "<|assistant|>", "<|end|>"], PHI3),
    (&["<|user|>", "<|assistant|>"], ZEPHYR),
];

/// Who said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    /// As templates know it.
    const fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

/// A template that compiled.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// The file's own template, else its family's.
    pub fn new(vocabulary: &Vocabulary) -> Outcome<Self> {
        let source = match &vocabulary.chat_template {
            Some(source) => source.clone(),
            None => fallback(vocabulary).to_owned(),
        };
        if source.len() > SOURCE_BYTES_MAX {
            return Err(broken(&format!("{} bytes are too many", source.len())));
        }
        let spelling =
            |id: Option<u32>| id.and_then(|id| vocabulary.token(id)).unwrap_or_default().to_owned();
        Ok(ChatTemplate {
            environment: environment(source).map_err(|error| broken(&describe(&error)))?,
            bos: spelling(vocabulary.bos),
            eos: spelling(vocabulary.eos),
        })
    }

    /// The conversation as text; with `is_asking` it ends where the model's answer begins.
    pub fn render(&self, messages: &[Message], is_asking: bool) -> Outcome<String> {
        let turn = |message: &Message| {
            context! { role => message.role.name(), content => message.content.as_str() }
        };
        let values = context! {
            messages => messages.iter().map(turn).collect::<Vec<Value>>(),
            add_generation_prompt => is_asking,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        let template = self.environment.get_template("chat");
        let text = template.and_then(|template| template.render(values));
        text.map_err(|error| broken(&describe(&error)))
    }
}

fn fallback(vocabulary: &Vocabulary) -> &'static str {
    let holds = |tokens: &&(&[&str], &str)| {
        tokens.0.iter().all(|token| vocabulary.iter().any(|(_, spelling)| spelling == *token))
    };
    FAMILIES.iter().find(holds).map_or(PLAIN, |(_, template)| template)
}

fn environment(source: String) -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(DEPTH_MAX);
    // As the library that these templates are written for sets it.
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, _> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_template_owned("chat", source)?;
    Ok(environment)
}

fn describe(error: &minijinja::Error) -> String {
    let detail = error.detail().map(str::to_owned).unwrap_or_else(|| error.kind().to_string());
    match error.line() {
        Some(line) => format!("line {line}: {detail}"),
        None => detail,
    }
}

fn broken(what: &str) -> Failure {
    Failure::new(format!("tokenizer.chat_template: {what}"))
        .hint("use `mzcache run`, which needs no chat template, or a model file with a sound one")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] \
        != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained \
        by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + \
        message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ \
        '<|im_start|>assistant\n' }}{% endif %}";

    fn say(role: Role, content: &str) -> Message {
        Message { role, content: content.to_owned() }
    }

    fn vocabulary(tokens: &[&str], template: Option<&str>) -> Vocabulary {
        Vocabulary {
            tokens: tokens.iter().map(|token| (*token).to_owned()).collect(),
            bos: Some(0),
            eos: Some(1),
            chat_template: template.map(str::to_owned),
            ..Vocabulary::default()
        }
    }

    fn render(vocabulary: &Vocabulary, messages: &[Message]) -> Outcome<String> {
        ChatTemplate::new(vocabulary)?.render(messages, true)
    }

    #[test]
    fn the_file_s_own_template_is_used() {
        let text = render(&vocabulary(&["a", "b"], Some(SMOLLM2)), &[say(Role::User, "Hi")]);
        assert_eq!(
            text.unwrap(),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging \
             Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn families_are_known_by_their_tokens() {
        let talk = [say(Role::System, "S"), say(Role::User, "U"), say(Role::Assistant, "A")];
        let cases: [(&[&str], &str); 7] = [
            (
                &["<|im_start|>", "<|im_end|>"],
                "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n\
                 <|im_start|>assistant\nA<|im_end|>\n<|im_start|>assistant\n",
            ),
            (
                &["<bos>", "<eos>", "<|start_header_id|>", "<|eot_id|>"],
                "<bos><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>\
                 <|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (
                &["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
                "<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n\
                 <start_of_turn>model\nA<end_of_turn>\n<start_of_turn>model\n",
            ),
            (
                &["[|user|]", "[|endofturn|]"],
                "[|system|]S[|endofturn|]\n[|user|]\nU\n[|assistant|]A[|endofturn|]\n[|assistant|]",
            ),
            (
                &["<|user|>", "<|assistant|>", "<|end|>"],
                "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n\
                 <|assistant|>\n",
            ),
            (
                &["<s>", "</s>", "<|user|>", "<|assistant|>"],
                "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n<|assistant|>\n",
            ),
            (&["a", "b"], "System: S\nUser: U\nAssistant: A\nAssistant:"),
        ];
        for (tokens, expected) in cases {
            assert_eq!(render(&vocabulary(tokens, None), &talk).unwrap(), expected);
        }
    }

    #[test]
    fn python_s_methods_and_missing_variables_work() {
        let template = "{% if tools is not defined %}none{% endif %}{{ messages[-1].content.strip()\
            .upper() }}{% for m in messages[1:] %}{{ m['role'].startswith('u') }}{% endfor %}\
            {{ strftime_now is defined }}{{ {'a': 1}|tojson }}";
        let talk = [say(Role::System, "x"), say(Role::User, " hey ")];
        let text = render(&vocabulary(&["a", "b"], Some(template)), &talk).unwrap();
        assert_eq!(text.to_lowercase().replace(' ', ""), "noneheytruefalse{\"a\":1}");
    }

    #[test]
    fn a_template_may_refuse_a_conversation() {
        let template = "{{ raise_exception('roles must alternate') }}";
        let failure = render(&vocabulary(&["a", "b"], Some(template)), &[]).unwrap_err();
        assert!(failure.message.contains("line 1: roles must alternate"), "{failure}");
        assert!(failure.hint.is_some_and(|hint| hint.contains("mzcache run")));
    }

    #[test]
    fn hostile_templates_are_messages() {
        let nested = "{{ (".to_owned() + &"(".repeat(5_000);
        let blocks = "{% if true %}".repeat(5_000);
        let long = "x".repeat(SOURCE_BYTES_MAX + 1);
        let hostile = [
            "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{{ 'x' * 99999999999 }}",
            "{% set ns = namespace(s='xxxxxxxx') %}{% for a in range(9999) %}\
             {% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
            "{% include 'chat' %}",
            "{% include '/etc/passwd' %}",
            "{{ messages[0].nothing.more }}",
            "{{ 1 // 0 }}",
            "{% for",
            "{{ unknown_function() }}",
            "{{ 'a'|unknown_filter }}",
            &nested,
            &blocks,
            &long,
        ];
        for template in hostile {
            let vocabulary = vocabulary(&["a", "b"], Some(template));
            let failure = render(&vocabulary, &[say(Role::User, "hi")]).unwrap_err();
            let shown = &template[..template.len().min(60)];
            assert!(failure.message.starts_with("tokenizer.chat_template: "), "{shown}");
        }
    }
}
