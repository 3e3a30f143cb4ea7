//! The attribute `verbena::test`: an async function whose parameters are simulated hosts becomes a
//! test.
//!
//! Internal to Verbena: it promises no stability.
//!
//! What the attribute means, and which arguments it takes, is told in `verbena::sim`; here a
//! function only becomes another one:
//!
//! ```text
//! #[verbena::test(ARGS)]                 const _: () = verbena::sim::check_settings("ARGS");
//! #[ignore]                              #[ignore]
//! async fn name(a: Host, b: Host) {..}   #[test]
//!                                        fn name() {
//!                                            async fn name(a: Host, b: Host) {..}
//!                                            verbena::sim::run_seeds(module_path!(), "name", "ARGS", &["a", "b"], |hosts| ..);
//!                                        }
//! ```
//!
//! No parser of Rust is needed for that: the function's tokens stay as they are, so that what the
//! compiler says of them is said where they stand.
#![forbid(unsafe_code)]

use proc_macro::{Delimiter, Group, Span, TokenStream, TokenTree};

/// Runs an async function on simulated hosts, one for each of its parameters: see `verbena::sim`.
#[proc_macro_attribute]
pub fn test(args: TokenStream, item: TokenStream) -> TokenStream {
    match expand(&args.to_string(), item) {
        Ok(tokens) => tokens,
        Err(Wrong { text, at }) => parsed(&format!("::core::compile_error!({text:?});"), at),
    }
}

/// What is wrong with the function, and where.
struct Wrong {
    text: &'static str,
    at: Span,
}

fn wrong(text: &'static str, at: Span) -> Wrong {
    Wrong { text, at }
}

fn expand(args: &str, item: TokenStream) -> Result<TokenStream, Wrong> {
    let tokens: Vec<TokenTree> = item.into_iter().collect();
    let (attributes, function) = tokens.split_at(attributes_end(&tokens));
    let (name, parameters) = signature(function)?;
    let hosts = parameters.stream().into_iter().collect::<Vec<_>>();
    let hosts =
        hosts.split(|t| is(t, ',')).filter(|p| !p.is_empty()).map(host).collect::<Result<Vec<_>, _>>()?;
    if hosts.is_empty() {
        return Err(wrong("#[verbena::test] needs parameters: they are its hosts", parameters.span()));
    }
    let list = hosts.iter().map(|h| format!("{h:?}, ")).collect::<String>();
    let given = (0..hosts.len()).map(|i| format!("hosts[{i}].clone(), ")).collect::<String>();
    let here = Span::call_site();

    let mut body: TokenStream = function.iter().cloned().collect();
    let run = format!(
        "::verbena::sim::run_seeds(::core::module_path!(), {name:?}, {args:?}, &[{list}], |hosts| {{
            ::std::boxed::Box::pin(async move {{ ::verbena::sim::check({name}({given}).await) }})
        }});"
    );
    body.extend(parsed(&run, here));

    // Outside of the function, which is there in test builds only.
    let mut test = parsed(&format!("const _: () = ::verbena::sim::check_settings({args:?});"), here);
    test.extend(attributes.iter().cloned());
    test.extend(parsed(&format!("#[::core::prelude::v1::test] fn {name}()"), here));
    test.extend([TokenTree::Group(Group::new(Delimiter::Brace, body))]);
    Ok(test)
}

/// How many tokens the attributes before a function are, doc comments among them.
fn attributes_end(tokens: &[TokenTree]) -> usize {
    let pairs = tokens.as_chunks().0.iter();
    2 * pairs.take_while(|[hash, group]| is(hash, '#') && matches!(group, TokenTree::Group(_))).count()
}

/// The function's name and parameters.
fn signature(function: &[TokenTree]) -> Result<(String, Group), Wrong> {
    let call = Span::call_site();
    let word = |i: usize, word: &str| matches!(function.get(i), Some(TokenTree::Ident(ident)) if ident.to_string() == word);
    let Some(at) = (0..function.len()).find(|&i| word(i, "fn")) else {
        return Err(wrong("#[verbena::test] is for functions", call));
    };
    if !(0..at).any(|i| word(i, "async")) {
        return Err(wrong("#[verbena::test] is for async functions", function[at].span()));
    }
    let Some(TokenTree::Ident(name)) = function.get(at + 1) else {
        return Err(wrong("#[verbena::test] is for functions with a name", call));
    };
    match function.get(at + 2) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => {
            Ok((name.to_string(), group.clone()))
        }
        _ => Err(wrong("#[verbena::test] is not for generic functions", name.span())),
    }
}

/// The host that a parameter stands for: `name: Host` or `mut name: Host`.
fn host(parameter: &[TokenTree]) -> Result<String, Wrong> {
    let rest = match parameter {
        [TokenTree::Ident(first), rest @ ..] if first.to_string() == "mut" => rest,
        all => all,
    };
    match rest {
        [TokenTree::Ident(name), colon, ..] if is(colon, ':') => {
            Ok(name.to_string().trim_start_matches("r#").to_owned())
        }
        _ => Err(wrong(
            "a parameter of #[verbena::test] is a name and its type: `left: Host`",
            parameter[0].span(),
        )),
    }
}

fn is(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

/// Text of ours as tokens that stand at `at`.
fn parsed(text: &str, at: Span) -> TokenStream {
    let tokens: TokenStream = text.parse().unwrap_or_default();
    tokens.into_iter().map(|token| placed(token, at)).collect()
}

fn placed(mut token: TokenTree, at: Span) -> TokenTree {
    if let TokenTree::Group(group) = &token {
        let inner = group.stream().into_iter().map(|token| placed(token, at)).collect();
        token = TokenTree::Group(Group::new(group.delimiter(), inner));
    }
    token.set_span(at);
    token
}
