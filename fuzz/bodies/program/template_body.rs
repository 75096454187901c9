//! Chat templates: whatever a model file says, a conversation becomes text or a message.

use super::template::{ChatTemplate, Message, Role};
use super::text::Vocabulary;

/// Reads the bytes as a template; whether it gives a conversation.
pub fn template(data: &[u8]) -> bool {
    let source = String::from_utf8_lossy(data).into_owned();
    let vocabulary = Vocabulary {
        tokens: ["<s>", "</s>", "<|im_start|>", "<|im_end|>"].map(String::from).to_vec(),
        bos: Some(0),
        eos: Some(1),
        // Without one, the family's.
        chat_template: (!source.is_empty()).then_some(source),
        ..Vocabulary::default()
    };
    let Some(template) = said(ChatTemplate::new(&vocabulary)) else { return false };
    let say = |role, content: &str| Message { role, content: content.to_owned() };
    let talk = [
        say(Role::System, "Be brief."),
        say(Role::User, " {{ 1 }} <|im_end|> \u{1F980} "),
        say(Role::Assistant, ""),
        say(Role::User, "?"),
    ];
    let asked = said(template.render(&talk, true));
    // The same again, and of no conversation, to the end.
    assert_eq!(said(template.render(&talk, true)), asked);
    let told = said(template.render(&[], false));
    asked.is_some() || told.is_some()
}

/// What went well. What did not names the key that is at fault, and says what can be done.
fn said<T>(outcome: super::failure::Outcome<T>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(failure) => {
            let message = failure.to_string();
            assert!(message.starts_with("tokenizer.chat_template: "), "{message}");
            assert!(failure.hint.is_some_and(|hint| !hint.is_empty()));
            None
        }
    }
}
