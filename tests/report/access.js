// What a page does to those who do not see it well: a list of complaints, empty if there are none.
() => {
  const wrong = [];
  const complain = (what, node) => wrong.push(`${what}: ${node ? node.outerHTML.slice(0, 160) : ""}`);
  const named = (node) => {
    const ids = (node.getAttribute("aria-labelledby") || "").split(" ").filter(Boolean);
    for (const id of ids) if (!document.getElementById(id)) complain(`no element ${id}`, node);
    const by = ids.map((id) => document.getElementById(id)?.textContent.trim() || "").join(" ");
    const own = node.tagName === "svg" ? node.querySelector(":scope > title")?.textContent || "" : node.textContent;
    return (node.getAttribute("aria-label") || by || node.getAttribute("alt") || own).trim();
  };
  if (!document.documentElement.lang) complain("no language");
  if (!document.title.trim()) complain("no title");
  for (const tag of ["header", "main", "h1"]) if (document.querySelectorAll(tag).length !== 1) complain(`not one ${tag}`);
  let level = 0;
  for (const head of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const own = Number(head.tagName[1]);
    if (own > level + 1) complain(`h${own} after h${level}`, head);
    if (!head.textContent.trim()) complain("empty heading", head);
    level = own;
  }
  const ids = new Set();
  for (const node of document.querySelectorAll("[id]")) {
    if (ids.has(node.id)) complain("identifier twice", node);
    ids.add(node.id);
  }
  for (const img of document.querySelectorAll("img")) if (!img.getAttribute("alt")?.trim()) complain("no alt", img);
  for (const img of document.querySelectorAll("img")) if (!img.complete || !img.naturalWidth) complain("not drawn", img);
  for (const svg of document.querySelectorAll("svg")) {
    if (svg.closest("[aria-hidden=true]") || svg.parentElement.closest("svg")) continue;
    if (svg.getAttribute("role") !== "img" || !named(svg)) complain("picture without a name", svg);
  }
  for (const node of document.querySelectorAll("a, button, [role=region], section, article, nav")) {
    if (!named(node)) complain("no name", node);
  }
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption?.textContent.trim()) complain("no caption", table);
    for (const th of table.querySelectorAll("th")) if (!th.scope) complain("no scope", th);
  }
  for (const link of document.querySelectorAll('a[href^="#"]')) {
    if (!document.getElementById(link.getAttribute("href").slice(1))) complain("leads nowhere", link);
  }
  // Contrast of every visible text, WCAG 2.2, 1.4.3.
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const light = ([r, g, b]) => {
    const f = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0.99) return colour;
    }
    return [255, 255, 255, 1];
  };
  const seen = new Map();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !node.checkVisibility() || node.closest("script, title, desc, .told")) continue;
    const style = getComputedStyle(node);
    const front = node.closest("svg") ? style.fill : style.color;
    const back = behind(node);
    const key = `${front} ${back} ${style.fontSize} ${style.fontWeight}`;
    if (seen.has(key)) continue;
    const [a, b] = [light(rgba(front)), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    seen.set(key, ratio);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) complain(`contrast ${ratio.toFixed(2)}`, node);
  }
  if (seen.size < 4) complain("too few texts were looked at");
  return wrong;
}
