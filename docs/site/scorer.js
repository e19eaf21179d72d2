/* Order of search results: titles that have all words of the query first, and pages that answer a
   question before the reference of the API, generated settings and tables of results. */
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const answers =
      docname.startsWith("docs/") &&
      !docname.startsWith("docs/settings/") &&
      docname !== "docs/api";
    return score * (kind === "title" ? 3 : 1) + (answers ? 8 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
