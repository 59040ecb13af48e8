//! CMMLU and C-Eval: multiple choice in Chinese, by log-likelihood.
//!
//! # Source
//! lm-evaluation-harness 0.4.13, tasks `cmmlu` and `ceval-valid`: the wording, the order of examples, the names of subjects.

use crate::mmlu::{LETTERS, files_by_subject, is_blank, strip};
use crate::question::{Answer, Question};
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;

/// A benchmark of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Benchmark {
    /// `test/SUBJECT.csv`, `dev/SUBJECT.csv`.
    Cmmlu,
    /// `val/SUBJECT_val.csv`, `dev/SUBJECT_dev.csv`.
    Ceval,
}

impl Benchmark {
    fn subjects(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Cmmlu => &CMMLU,
            Self::Ceval => &CEVAL,
        }
    }

    /// The folder of files that are asked; endings of their names, in the order in which they are looked for; the ending of
    /// those with solved examples.
    fn split(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Self::Cmmlu => ("test", &[".csv"], ".csv"),
            Self::Ceval => ("val", &["_val.csv", "_test.csv", "_dev.csv"], "_dev.csv"),
        }
    }

    fn introduction(self, subject: &str) -> String {
        match self {
            Self::Cmmlu => format!("以下是关于{subject}的单项选择题，请直接给出正确答案的选项。\n\n"),
            Self::Ceval => format!("以下是中国关于{subject}的单项选择题，请选出其中的正确答案。\n\n"),
        }
    }
}

/// The questions of a folder in the order of its subjects, at most `most` of each, after `shots` solved examples.
///
/// # Errors
/// If there is no file, a subject has no name in the benchmark, a row lacks a cell, or there are too few examples.
pub(crate) fn questions(kind: Benchmark, dir: &Path, shots: usize, most: usize) -> Result<Vec<Question>> {
    let (split, endings, solved) = kind.split();
    let tests = if dir.join(split).is_dir() { dir.join(split) } else { dir.to_owned() };
    let mut all = Vec::new();
    for (name, path) in files_by_subject(&tests, endings)? {
        let known = kind.subjects().iter().find(|(subject, _)| *subject == name);
        let (_, subject) = known
            .with_context(|| format!("{}: {name:?} is not a subject of this benchmark", path.display()))?;
        let mut before = kind.introduction(subject);
        if shots > 0 {
            let examples = tests.join("../dev").join(format!("{name}{solved}"));
            if examples.canonicalize().ok() == path.canonicalize().ok() {
                bail!(
                    "{}: expected other questions than the {shots} solved examples, which are the first of this file\n\
                     hint: --num-fewshot 0 asks without examples",
                    path.display()
                );
            }
            let rows = read(&examples)?;
            if rows.len() < shots {
                bail!(
                    "{}: expected {shots} solved examples, found {}\nhint: lower --num-fewshot",
                    examples.display(),
                    rows.len()
                );
            }
            for row in &rows[..shots] {
                before.push_str(&format!("{} {}\n\n", row.text, LETTERS[row.gold]));
            }
        }
        for (number, row) in read(&path)?.into_iter().take(most).enumerate() {
            all.push(Question {
                subject: name.clone(),
                id: format!("{name}/{number}"),
                prompt: format!("{before}{}", row.text),
                labels: &LETTERS,
                gold: row.gold,
                answer: Answer::Likeliest { choices: LETTERS.map(str::to_owned).to_vec(), normalised: true },
            });
        }
    }
    Ok(all)
}

/// A row as a question.
struct Row {
    text: String,
    gold: usize,
}

fn read(path: &Path) -> Result<Vec<Row>> {
    let place = || path.display().to_string();
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_path(path).with_context(place)?;
    let header = reader.headers().with_context(place)?.clone();
    let column = |name: &str| {
        let found =
            header.iter().position(|cell| cell.trim_start_matches('\u{feff}').eq_ignore_ascii_case(name));
        found.with_context(|| format!("{}: expected a column {name:?} in its first row", path.display()))
    };
    let [question, a, b, c, d, answer] =
        [column("question")?, column("a")?, column("b")?, column("c")?, column("d")?, column("answer")?];
    let mut rows = Vec::new();
    for (number, record) in reader.records().enumerate() {
        let record = record.with_context(place)?;
        if is_blank(&record) {
            continue;
        }
        let cell = |at: usize| {
            record.get(at).with_context(|| format!("{}: row {}: it lacks a cell", path.display(), number + 2))
        };
        let gold = cell(answer)?.trim();
        let gold = LETTERS.iter().position(|letter| *letter == gold).with_context(|| {
            format!("{}: row {}: expected an answer from A to D, found {gold:?}", path.display(), number + 2)
        })?;
        let text = format!(
            "{}\nA. {}\nB. {}\nC. {}\nD. {}\n答案：",
            strip(cell(question)?),
            cell(a)?,
            cell(b)?,
            cell(c)?,
            cell(d)?
        );
        rows.push(Row { text, gold });
    }
    ensure!(!rows.is_empty(), "{}: expected questions, found none", path.display());
    Ok(rows)
}

const CMMLU: [(&str, &str); 67] = [
    ("agronomy", "农学"),
    ("anatomy", "解剖学"),
    ("ancient_chinese", "古汉语"),
    ("arts", "艺术学"),
    ("astronomy", "天文学"),
    ("business_ethics", "商业伦理"),
    ("chinese_civil_service_exam", "中国公务员考试"),
    ("chinese_driving_rule", "中国驾驶规则"),
    ("chinese_food_culture", "中国饮食文化"),
    ("chinese_foreign_policy", "中国外交政策"),
    ("chinese_history", "中国历史"),
    ("chinese_literature", "中国文学"),
    ("chinese_teacher_qualification", "中国教师资格"),
    ("clinical_knowledge", "临床知识"),
    ("college_actuarial_science", "大学精算学"),
    ("college_education", "大学教育学"),
    ("college_engineering_hydrology", "大学工程水文学"),
    ("college_law", "大学法律"),
    ("college_mathematics", "大学数学"),
    ("college_medical_statistics", "大学医学统计"),
    ("college_medicine", "大学医学"),
    ("computer_science", "计算机科学"),
    ("computer_security", "计算机安全"),
    ("conceptual_physics", "概念物理学"),
    ("construction_project_management", "建设工程管理"),
    ("economics", "经济学"),
    ("education", "教育学"),
    ("electrical_engineering", "电气工程"),
    ("elementary_chinese", "小学语文"),
    ("elementary_commonsense", "小学常识"),
    ("elementary_information_and_technology", "小学信息技术"),
    ("elementary_mathematics", "初等数学"),
    ("ethnology", "民族学"),
    ("food_science", "食品科学"),
    ("genetics", "遗传学"),
    ("global_facts", "全球事实"),
    ("high_school_biology", "高中生物"),
    ("high_school_chemistry", "高中化学"),
    ("high_school_geography", "高中地理"),
    ("high_school_mathematics", "高中数学"),
    ("high_school_physics", "高中物理学"),
    ("high_school_politics", "高中政治"),
    ("human_sexuality", "人类性行为"),
    ("international_law", "国际法学"),
    ("journalism", "新闻学"),
    ("jurisprudence", "法理学"),
    ("legal_and_moral_basis", "法律与道德基础"),
    ("logical", "逻辑学"),
    ("machine_learning", "机器学习"),
    ("management", "管理学"),
    ("marketing", "市场营销"),
    ("marxist_theory", "马克思主义理论"),
    ("modern_chinese", "现代汉语"),
    ("nutrition", "营养学"),
    ("philosophy", "哲学"),
    ("professional_accounting", "专业会计"),
    ("professional_law", "专业法学"),
    ("professional_medicine", "专业医学"),
    ("professional_psychology", "专业心理学"),
    ("public_relations", "公共关系"),
    ("security_study", "安全研究"),
    ("sociology", "社会学"),
    ("sports_science", "体育学"),
    ("traditional_chinese_medicine", "中医中药"),
    ("virology", "病毒学"),
    ("world_history", "世界历史"),
    ("world_religions", "世界宗教"),
];

const CEVAL: [(&str, &str); 52] = [
    ("accountant", "注册会计师"),
    ("advanced_mathematics", "高等数学"),
    ("art_studies", "艺术学"),
    ("basic_medicine", "基础医学"),
    ("business_administration", "工商管理"),
    ("chinese_language_and_literature", "中国语言文学"),
    ("civil_servant", "公务员"),
    ("clinical_medicine", "临床医学"),
    ("college_chemistry", "大学化学"),
    ("college_economics", "大学经济学"),
    ("college_physics", "大学物理"),
    ("college_programming", "大学编程"),
    ("computer_architecture", "计算机组成"),
    ("computer_network", "计算机网络"),
    ("discrete_mathematics", "离散数学"),
    ("education_science", "教育学"),
    ("electrical_engineer", "注册电气工程师"),
    ("environmental_impact_assessment_engineer", "环境影响评价工程师"),
    ("fire_engineer", "注册消防工程师"),
    ("high_school_biology", "高中生物"),
    ("high_school_chemistry", "高中化学"),
    ("high_school_chinese", "高中语文"),
    ("high_school_geography", "高中地理"),
    ("high_school_history", "高中历史"),
    ("high_school_mathematics", "高中数学"),
    ("high_school_physics", "高中物理"),
    ("high_school_politics", "高中政治"),
    ("ideological_and_moral_cultivation", "思想道德修养与法律基础"),
    ("law", "法学"),
    ("legal_professional", "法律职业资格"),
    ("logic", "逻辑学"),
    ("mao_zedong_thought", "毛泽东思想和中国特色社会主义理论体系概论"),
    ("marxism", "马克思主义基本原理"),
    ("metrology_engineer", "注册计量师"),
    ("middle_school_biology", "初中生物"),
    ("middle_school_chemistry", "初中化学"),
    ("middle_school_geography", "初中地理"),
    ("middle_school_history", "初中历史"),
    ("middle_school_mathematics", "初中数学"),
    ("middle_school_physics", "初中物理"),
    ("middle_school_politics", "初中政治"),
    ("modern_chinese_history", "近代史纲要"),
    ("operating_system", "操作系统"),
    ("physician", "医师资格"),
    ("plant_protection", "植物保护"),
    ("probability_and_statistics", "概率统计"),
    ("professional_tour_guide", "导游资格"),
    ("sports_science", "体育学"),
    ("tax_accountant", "税务师"),
    ("teacher_qualification", "教师资格"),
    ("urban_and_rural_planner", "注册城乡规划师"),
    ("veterinary_medicine", "兽医学"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_cmmlu_is_read_and_asked_as_the_harness_does() {
        let Some(dir) = ms_testing::shared("data/eval/cmmlu") else { return };
        let all = questions(Benchmark::Cmmlu, &dir, 1, usize::MAX).unwrap();
        assert_eq!(all.len(), 11_582);
        let subjects: std::collections::BTreeSet<&str> = all.iter().map(|q| q.subject.as_str()).collect();
        assert_eq!(subjects.len(), 67);
        let first = all.iter().find(|q| q.id == "anatomy/0").unwrap();
        assert!(
            first.prompt.starts_with("以下是关于解剖学的单项选择题，请直接给出正确答案的选项。\n\n"),
            "{}",
            first.prompt
        );
        let end = "\n\n女性生殖腺是\nA. 卵巢\nB. 前庭大腺\nC. 前庭球\nD. 乳腺\n答案：";
        assert!(first.prompt.ends_with(end), "{}", first.prompt);
        // One solved example stands before it.
        assert_eq!(first.prompt.matches("答案： ").count(), 1);
        assert_eq!(first.gold, 0);
    }

    #[test]
    fn c_eval_has_its_own_names_of_files_and_its_own_wording() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, ending) in [("val", "_val"), ("dev", "_dev")] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
            let text = "id,question,A,B,C,D,answer,explanation\n0, 一 ,a,b,c,d,B,\n  \n";
            std::fs::write(dir.path().join(folder).join(format!("law{ending}.csv")), text).unwrap();
        }
        let all = questions(Benchmark::Ceval, dir.path(), 1, 5).unwrap();
        let asked = "一\nA. a\nB. b\nC. c\nD. d\n答案：";
        let want = format!("以下是中国关于法学的单项选择题，请选出其中的正确答案。\n\n{asked} B\n\n{asked}");
        assert_eq!((all.len(), all[0].prompt.as_str(), all[0].gold), (1, want.as_str(), 1));
        assert!(
            questions(Benchmark::Ceval, dir.path(), 2, 5)
                .unwrap_err()
                .to_string()
                .contains("lower --num-fewshot")
        );
        // Questions may be those of dev, but not behind themselves, and hidden files are none.
        std::fs::write(dir.path().join("dev/._law_dev.csv"), "\0").unwrap();
        let of_dev = |shots| questions(Benchmark::Ceval, &dir.path().join("dev"), shots, 5);
        assert!(want.ends_with(asked) && of_dev(0).unwrap()[0].prompt.ends_with(asked));
        assert!(of_dev(1).unwrap_err().to_string().contains("other questions than the 1 solved examples"));
        std::fs::write(dir.path().join("val/chess_val.csv"), "id\n").unwrap();
        assert!(
            format!("{:#}", questions(Benchmark::Ceval, dir.path(), 0, 5).unwrap_err()).contains("chess")
        );
    }
}
