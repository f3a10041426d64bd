from tui_screens import screen


def test_the_first_screen_shows_every_gpu() -> None:
    lines = screen(gpus=8)
    assert sum("sim001:" in line for line in lines) == 8
    assert len(lines) == 24
