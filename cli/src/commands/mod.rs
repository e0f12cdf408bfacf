//! What each command does. One file a group, named like the group of its arguments.

use crate::args::{Cli, Command, CompletionsArgs};
use crate::output::{Ending, Out};
use clap::CommandFactory as _;

/// Does what was asked.
pub(crate) async fn run(command: Command, out: &mut Out) -> Result<(), Ending> {
    match command {
        Command::Completions(args) => completions(&args, out),
        _ => Err(Ending::Said(5)),
    }
}

fn completions(args: &CompletionsArgs, out: &mut Out) -> Result<(), Ending> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "polder", &mut script);
    out.text(&String::from_utf8_lossy(&script))
}
