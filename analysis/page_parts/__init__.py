"""What a page holds, as plain data of bounded size: each part answers one question of one report."""
