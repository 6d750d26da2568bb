(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const pageRows = data.page_rows;

  const element = (name, properties, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  const text = (cell) => (Array.isArray(cell) ? cell[0] : cell);
  // Unknown numbers have no key and are sorted last, in both directions.
  const key = (cell, kind) => (Array.isArray(cell) ? cell[1] : kind === "number" ? null : cell);
  const collator = new Intl.Collator("en", { numeric: true });

  function compare(left, right, direction) {
    if (left === null || right === null) return (left === null) - (right === null);
    const order = typeof left === "number" && typeof right === "number" ? left - right : collator.compare(left, right);
    return direction * order;
  }

  class Table {
    constructor(container) {
      this.container = container;
      this.body = container.querySelector("tbody");
      this.headings = [...container.querySelectorAll("thead th")];
      this.labels = this.headings.map((heading) => heading.textContent);
      this.kinds = this.headings.map((heading) => heading.className);
      this.all = data.tables[container.dataset.table];
      this.rows = this.all;
      this.sorted = this.all;
      this.start = 0;
      this.column = null;
      this.direction = 1;
      this.filter = "";
      if (this.all.length > 1) this.headings.forEach((heading, column) => this.addSort(heading, column));
      if (this.all.length > pageRows) this.addPager();
    }

    addSort(heading, column) {
      const button = element("button", { type: "button" }, this.labels[column]);
      button.addEventListener("click", () => this.sort(column));
      heading.replaceChildren(button);
    }

    addPager() {
      this.container.querySelector(".rest").remove();
      // Buttons at an end stay focusable, so that the focus is not lost when the last page is reached.
      const step = (label, target) => {
        const button = element("button", { type: "button" }, label);
        button.addEventListener("click", () => button.ariaDisabled === "true" || this.show(target()));
        return button;
      };
      const last = () => Math.max(0, Math.ceil(this.rows.length / pageRows) - 1) * pageRows;
      this.back = [step("First", () => 0), step("Previous", () => this.start - pageRows)];
      this.ahead = [step("Next", () => this.start + pageRows), step("Last", last)];
      this.status = element("span", { className: "status" });
      this.status.setAttribute("role", "status");
      const input = element("input", { type: "search", size: 14 });
      input.addEventListener("input", () => this.search(input.value));
      const caption = this.container.querySelector("caption").textContent;
      const pager = element("div", { className: "pager" }, this.status, element("label", {}, "Filter", input));
      pager.setAttribute("role", "group");
      pager.setAttribute("aria-label", `Pages of the table: ${caption}`);
      pager.append(...this.back, ...this.ahead);
      this.container.append(pager);
      this.show(0);
    }

    sort(column) {
      // Numbers start with the largest, text with the first.
      const first = this.kinds[column] === "number" ? -1 : 1;
      this.direction = this.column === column ? -this.direction : first;
      this.column = column;
      this.headings.forEach((heading, other) => {
        if (other !== column) heading.removeAttribute("aria-sort");
      });
      this.headings[column].setAttribute("aria-sort", this.direction > 0 ? "ascending" : "descending");
      this.arrange();
    }

    search(words) {
      this.filter = words.trim().toLowerCase();
      this.arrange();
    }

    arrange() {
      const matches = (row) => row.some((cell) => text(cell).toLowerCase().includes(this.filter));
      const rows = this.filter ? this.all.filter(matches) : [...this.all];
      if (this.column !== null) {
        const kind = this.kinds[this.column];
        const keyed = rows.map((row) => [key(row[this.column], kind), row]);
        keyed.sort((left, right) => compare(left[0], right[0], this.direction));
        this.rows = keyed.map((pair) => pair[1]);
      } else {
        this.rows = rows;
      }
      this.show(0);
    }

    show(start) {
      this.start = Math.max(0, start);
      const shown = this.all.length > pageRows ? this.rows.slice(this.start, this.start + pageRows) : this.rows;
      this.body.replaceChildren(...shown.map((row) => this.makeRow(row)));
      if (!this.status) return;
      const format = (number) => number.toLocaleString("en");
      const end = this.start + shown.length;
      const range = this.rows.length ? `Rows ${format(this.start + 1)} to ${format(end)}` : "No rows";
      const order = this.column === null ? "" : `, sorted by ${this.labels[this.column]}`;
      this.status.textContent = `${range} of ${format(this.rows.length)}${order}`;
      this.back.forEach((button) => (button.ariaDisabled = String(this.start === 0)));
      this.ahead.forEach((button) => (button.ariaDisabled = String(end >= this.rows.length)));
    }

    makeRow(row) {
      const made = element("tr", {});
      row.forEach((cell, column) => {
        const kind = this.kinds[column];
        const shown = element(column ? "td" : "th", { className: kind }, text(cell));
        if (!column) shown.scope = "row";
        made.append(shown);
      });
      return made;
    }
  }

  document.querySelectorAll("[data-table]").forEach((container) => new Table(container));

  const files = [...document.querySelectorAll("details.file")];
  if (files.length > 1) {
    const select = element("select", { id: "file-choice" });
    files.forEach((file, number) => select.append(element("option", { value: number }, file.dataset.file)));
    const choose = () => {
      files.forEach((file, number) => {
        file.hidden = number !== Number(select.value);
        file.open = true;
      });
    };
    select.addEventListener("change", choose);
    files[0].before(element("p", { className: "choice" }, element("label", {}, "Data file", select)));
    choose();
  }

  document.querySelectorAll(".command").forEach((command) => {
    const button = element("button", { type: "button" }, "Copy");
    const code = command.querySelector("code");
    button.setAttribute("aria-label", `Copy the command: ${code.textContent}`);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
      }
    });
    command.append(button);
  });
})();
