"""Ways to watch a policy: an off-screen video, MuJoCo's window, and a page in the browser.

`session.py` is the robot that all of them watch. `picture.py`, `offscreen.py`, `video.py` and `window.py` draw it with
MuJoCo; `shapes.py`, `scene.py`, `panel.py` and `browser.py` with viser. `play.py`, a folder up, chooses.
"""
