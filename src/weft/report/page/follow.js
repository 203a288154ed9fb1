// Follows what is in progress: asks this page's own server every two seconds and puts in what has changed.
"use strict";
(() => {
  const main = document.getElementById("main");
  const told = document.getElementById("told");
  const address = document.querySelector("main > [data-follow]")?.dataset.follow;
  if (address === undefined) return;
  const seen = new Map();
  for (const part of main.children) if (part.dataset.h) seen.set(part.id, part.dataset.h);
  const heads = (root) => [...root.querySelectorAll("table[data-sorts]")].map((t) => [...t.tHead.rows[0].cells]);
  // What a reader has done to a part (sorted, unfolded, focused) outlives its replacement.
  const replace = (old, fresh) => {
    const sorts = heads(old).map((cells) => cells.map((cell) => cell.getAttribute("aria-sort")));
    const open = [...old.querySelectorAll("details")].map((d) => d.open);
    const stops = "a[href], button, summary, [tabindex]";
    const focus = [...old.querySelectorAll(stops)].indexOf(document.activeElement);
    old.replaceWith(fresh);
    fresh.dispatchEvent(new Event("weft:new", { bubbles: true }));
    heads(fresh).forEach((cells, t) => cells.forEach((cell, i) => {
      const sort = sorts[t]?.[i];
      const button = cell.querySelector("button");
      if (sort === "ascending" || sort === "descending") button?.click();
      if (sort === "descending") button?.click();
    }));
    fresh.querySelectorAll("details").forEach((d, i) => { d.open = open[i] ?? d.open; });
    if (focus >= 0) [...fresh.querySelectorAll(stops)][focus]?.focus({ preventScroll: true });
    told.textContent = "";
  };
  const element = (html) => {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    return holder.content.firstElementChild;
  };
  const update = (parts) => {
    const wanted = new Set(parts.map((part) => part.id));
    for (const part of [...main.children]) if (part.dataset.h && !wanted.has(part.id)) part.remove();
    let before = main.querySelector(":scope > [data-follow]");
    for (const { id, h, html } of parts) {
      const old = document.getElementById(id);
      if (!old) before.after(element(html));
      else if (seen.get(id) !== h) replace(old, element(html));
      seen.set(id, h);
      before = document.getElementById(id);
    }
  };
  const note = main.querySelector(":scope > [data-follow]");
  const ask = async () => {
    let wait = 2000;
    try {
      const answer = await fetch(address, { cache: "no-store", credentials: "omit" });
      if (!answer.ok) throw new Error(String(answer.status));
      const { parts, said } = await answer.json();
      update(parts);
      if (note.textContent !== said) note.textContent = said;
    } catch {
      note.textContent = "The server does not answer; this is what it said last.";
      wait = 5000;
    }
    setTimeout(ask, document.hidden ? 10000 : wait);
  };
  setTimeout(ask, 1000);
})();
