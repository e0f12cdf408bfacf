//! Help is part of the product: every text is held by a snapshot.

use super::*;
use clap::CommandFactory as _;
use std::fmt::Write as _;

fn help(command: &mut clap::Command, path: &str, text: &mut String) {
    let rendered = command.clone().bin_name(path).render_help();
    let _ = writeln!(text, "==== {path} ====\n{rendered}");
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        if let Some(sub) = command.find_subcommand_mut(&name) {
            help(sub, &format!("{path} {name}"), text);
        }
    }
}

#[test]
fn help_texts() {
    let mut command = Cli::command().term_width(100);
    command.build();
    let mut text = String::new();
    help(&mut command, "polder", &mut text);
    insta::assert_snapshot!(text);
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn ids_may_be_abbreviated_but_not_to_nothing() {
    let show =
        |id: &str| Cli::try_parse_from(["polder", "show", id]).map(|_| ()).map_err(|error| error.to_string());
    assert!(show("3f2a").is_ok());
    assert!(show("3f2a0c11d2e3f405162738495a6b7c8d").is_ok());
    for bad in ["3f2", "3F2A", "xyzw", "3f2a0c11d2e3f405162738495a6b7c8d0"] {
        let error = show(bad).expect_err(bad);
        assert!(error.contains("at least the first 4"), "{error}");
    }
}
