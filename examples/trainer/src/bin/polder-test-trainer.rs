//! See `polder_demo_trainer::misbehave`.

fn main() -> anyhow::Result<()> {
    polder_demo_trainer::misbehave::main()
}
