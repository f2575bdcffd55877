"""A page in headless Chromium, at some width: what a script in it finds, and what the console says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROBE = """
const luminance = c => { const [r, g, b] = c.map(x => x / 255).map(x =>
    x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const colour = text => (text.match(/[\\d.]+/g) || []).map(Number);
const solid = c => c.length >= 3 && (c.length < 4 || c[3] > 0);
function ground(e) {
  for (let x = e; x; x = x.parentElement) {
    const c = colour(getComputedStyle(x).backgroundColor);
    if (solid(c)) return c.slice(0, 3);
  }
  return matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255];
}
function behind(text) {  // the last box that is drawn before a text of a picture and holds its first point
  const at = text.getBBox(), m = text.transform.baseVal.numberOfItems ? null : at;
  let found = ground(text.ownerSVGElement);
  if (!m) return found;
  for (const r of text.ownerSVGElement.querySelectorAll('rect')) {
    if (!(r.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING)) continue;
    const b = r.getBBox(), c = colour(getComputedStyle(r).fill);
    const inside = b.x <= at.x + 1 && at.x + 1 <= b.x + b.width && b.y <= at.y + 6 && at.y + 6 <= b.y + b.height;
    if (solid(c) && inside) found = c.slice(0, 3);
  }
  return found;
}
const low = [];
let least = 99;
for (const d of document.querySelectorAll('details')) d.open = true;
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!own || ['SCRIPT', 'STYLE', 'TITLE', 'title'].includes(e.tagName)) continue;
  const picture = e.tagName === 'text';
  const ink = colour(picture ? getComputedStyle(e).fill : getComputedStyle(e).color).slice(0, 3);
  const [a, b] = [luminance(ink), luminance(picture ? behind(e) : ground(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  least = Math.min(least, ratio);
  if (ratio < 4.5) low.push([e.tagName, e.getAttribute('class'), e.textContent.slice(0, 30), ratio]);
}
const scrollers = [...document.querySelectorAll('*')].filter(e => {
  const how = getComputedStyle(e).overflowX;
  return (how === 'auto' || how === 'scroll') && e.scrollWidth > e.clientWidth + 1;
});
const nameless = e => e.tabIndex < 0 || !e.getAttribute('aria-label');
const unreachable = scrollers.filter(nameless).map(e => e.outerHTML.slice(0, 80));
const links = [...document.querySelectorAll('a[href^="#"]')].map(a => a.getAttribute('href'));
parent.postMessage(JSON.stringify({
  width: innerWidth, overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  low: low.slice(0, 5), least, unreachable,
  scrollers: scrollers.length, dark: matchMedia('(prefers-color-scheme: dark)').matches,
  broken: links.filter(h => !document.getElementById(h.slice(1))),
  unnamed: [...document.querySelectorAll('svg')].filter(s => !s.getAttribute('aria-label')).length,
}), '*');
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the probe found, and the lines of the console."""

    found: dict[str, Any]
    console: list[str]


def look(page: str, width: int, folder: Path, dark: bool = False) -> Seen:
    """Opens the page in a frame of this width. Its own policy stands, but for the probe, which is a script."""
    assert CHROMIUM is not None, "there is no Chromium"
    probed = page.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    (folder / "page.html").write_text(probed.replace("</body>", f"<script>{PROBE}</script></body>"), encoding="utf-8")
    frame = f'<iframe src="page.html" style="width:{width}px;height:800px;border:0"></iframe>'
    told = "<pre id=told></pre><script>onmessage = e => { told.textContent = e.data; }</script>"
    (folder / "frame.html").write_text(f"<!DOCTYPE html><meta charset=utf-8><link rel=icon href='data:,'>{frame}{told}")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += ["--blink-settings=preferredColorScheme=" + ("0" if dark else "1")]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1800,1000", "--virtual-time-budget=20000"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom", (folder / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    answer = re.search(r'<pre id="?told"?>(.*?)</pre>', done.stdout, re.DOTALL)
    assert answer and answer[1], done.stderr[-2000:]
    return Seen(json.loads(unescape(answer[1])), [x for x in done.stderr.splitlines() if "CONSOLE" in x])
